"""Parameters of a converted model in functions that a program applies to them outside of a call of the model.

A penalty on weights, ``loss + F.sum(param ** 2)``, meets a loss in float32, and its sum may be larger than float16
goes. A method of the model that the program calls by its name, ``model.encode(x)``, gives ``F.linear(x, self.W)``
an input in float32. So parameters take part in float32, by a cast whose gradient is in their own dtype. Backward
passes apply functions to parameters, too, where these meet gradients in the compute dtype: there they stay as they are.
"""

import functools
import threading

import chainer
from chainer.functions.array.cast import Cast

from mixprec.compat.registry import patch
from mixprec.dtypes import BFLOAT16, FLOAT32, is_half
from mixprec.functions.layout import cast
from mixprec.links.storage import Rounded
from mixprec.rewrite.dtype_rules import chainer_apply

_backward = threading.local()


def widened(node, inputs):
    """Returns the inputs of a function node, all in float32 if one of them is a converted parameter in 16 bits."""
    if not any(map(_is_converted, inputs)) or getattr(_backward, "is_running", False):
        return inputs
    if type(node).__module__.startswith("mixprec."):  # our functions take parameters as they are
        return inputs
    return tuple(_in_float32(x) if is_half(x.dtype) else x for x in inputs)


def _is_converted(x):
    return isinstance(x, chainer.Parameter) and isinstance(x.initializer, Rounded) and is_half(x.dtype)


def _in_float32(x):
    # Chainer's own cast can be differentiated twice, and does not know bfloat16.
    return cast(x, FLOAT32) if x.dtype == BFLOAT16 else chainer_apply(Cast(FLOAT32), (x,))[0]


@patch("chainer._backprop_utils:backprop_step", when="mixprec.convert")
def backprop_step(original):
    """Without it parameters are float32 in gradients of gradients, too, which are in the compute dtype."""

    @functools.wraps(original)
    def backprop_step(*args):
        outer = getattr(_backward, "is_running", False)
        _backward.is_running = True
        try:
            original(*args)
        finally:
            _backward.is_running = outer

    return backprop_step
