"""What a model of the zoo is to the tests of conversion: how to build it, what to call it with, what its loss is.

Models are written as users write them: plain Chainer, float32, (N, C, H, W), no word of mixprec.
"""

import dataclasses
from collections.abc import Callable

import chainer
import chainer.functions as F
import numpy as np

CASES = {}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of the zoo.

    Attributes:
        build: returns the model; draws from ``np.random``.
        inputs: returns what one call gets, drawn from the ``RandomState`` it is given: an array, a tuple of positional
            arguments or a dict of keyword arguments. Floating arrays are float32.
        loss: scalar variable of ``(model, result of the call)``.
        kept: attributes of the model that hold variables after a call.
        method: name of the method that is called.
        large: so many ReLUs and maxima that some are decided by rounding, whatever the inputs.
    """

    build: Callable
    inputs: Callable
    loss: Callable
    kept: tuple = ()
    method: str = "__call__"
    large: bool = False


def case(name, inputs, loss=None, **options):
    """Registers a class without arguments, or any function that builds a model."""

    def register(build):
        assert name not in CASES, name
        CASES[name] = Case(build, inputs, loss or moment, **options)
        return build

    return register


def images(*shape):
    """Inputs: one array of this shape from the normal distribution."""
    return lambda random: random.normal(size=shape).astype(np.float32)


def labelled(*shape, classes=5):
    """Inputs: images and labels."""
    return lambda random: (images(*shape)(random), random.randint(0, classes, shape[0]).astype(np.int32))


def variables_in(result):
    """All variables of a nested result, in order."""
    if isinstance(result, chainer.Variable):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (tuple, list)):
        return [variable for item in result for variable in variables_in(item)]
    return []


def moment(model, result):
    """A loss that asks for all of a result: the sum of weighted means of (y + 1) ** 2, which does not cancel."""
    random = np.random.RandomState(7)
    total = 0.0
    for variable in variables_in(result):
        weights = random.exponential(1.0, variable.shape) / variable.size
        total += F.sum((variable + 1.0) ** 2 * model.xp.asarray(weights.astype(variable.dtype)))
    return total


def itself(model, result):
    """The loss of a model whose call returns it."""
    return result


def own(model, result):
    """The loss of a model that keeps it as ``self.loss``."""
    return model.loss
