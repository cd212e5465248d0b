"""Runs a model of the zoo plain and converted, in float32, float16 and float64, and measures how far they are apart."""

import contextlib
import dataclasses
import functools
import itertools

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import FunctionNode
from chainer.functions.noise.dropout import Dropout

import mixprec
from mixprec import functions as mixprec_functions
from tests.zoo.cases import variables_in
from tests.zoo.models import CASES

SMALL = {name: case for name, case in CASES.items() if not case.large}
LARGE_CASES = [
    pytest.param(case, id=name, marks=() if name == "resnet18" else pytest.mark.long)
    for name, case in CASES.items()
    if case.large
]
# What has running statistics that are read between a normalization and its ReLU is not right if they are fused.
NOT_FUSED = {name: SMALL.pop(name) for name in ("statistics_are_read_between",)}
TRAINING, EVALUATION = True, False
PLAN = (EVALUATION, TRAINING, TRAINING, EVALUATION, TRAINING)
LARGE_PLAN = (TRAINING, EVALUATION)


@dataclasses.dataclass(frozen=True)
class Reference:
    """What some calls, one after the other, give in float64.

    Attributes:
        plan: of each call, whether it is in training mode.
        seeds: of the inputs of each call.
        expected: what :func:`run` returns for each call.
        statistics: what :func:`statistics` returns after the last one.
    """

    plan: tuple
    seeds: tuple
    expected: tuple
    statistics: dict


@functools.cache
def weights(case):
    """The initial parameters of a case, as the first call of the plain model makes them.

    Normalizations are moved away from gamma = 1 and beta = 0, where some gradients are 0 by symmetry.
    """
    np.random.seed(0)
    model = case.build()
    run(model, case, 0, backprop=False)
    found = {path: param.array.copy() for path, param in model.namedparams()}
    if case.large:
        return found
    random = np.random.RandomState(1)
    for path in sorted(found):
        if path.endswith("/gamma"):
            found[path] *= random.uniform(0.5, 1.5, found[path].shape).astype(np.float32)
        if path.endswith("/beta"):
            found[path] += random.uniform(-0.5, 0.5, found[path].shape).astype(np.float32)
    return found


def new(case, dtype=np.float32):
    """Returns a plain model of a case with its :func:`weights`, to be computed in float32 or float64."""
    np.random.seed(0)
    model = case.build()
    for path, link in model.namedlinks():
        if isinstance(link, L.BatchNormalization) and link.avg_mean is None:
            link._initialize_params(weights(case)[f"{path}/gamma"].shape)
    for path, param in model.namedparams():
        param.array = weights(case)[path].astype(dtype)
    for link in model.links():
        for statistic in link._persistent:
            value = getattr(link, statistic)
            if isinstance(value, np.ndarray) and value.dtype == np.float32:
                setattr(link, statistic, value.astype(dtype))
        if hasattr(link, "_highprec_dtype"):
            link._highprec_dtype = np.dtype(dtype)
    return model


def run(model, case, seed, *, train=True, backprop=True, loss_scale=None, dtype=np.float32):
    """Calls a model once, as in training: returns everything that comes out, by name, in float64.

    ``output/0``, ``loss``, ``kept/h``, ``gradient/conv/W``, ``input/0`` (a gradient). A parameter without a gradient is
    not among them.
    """
    model.cleargrads()
    with configured(train, backprop, dtype):
        given, result, loss = forward(model, case, seed, dtype)
        if backprop:
            loss.backward(loss_scale=loss_scale)
    found = {f"output/{i}": output.array for i, output in enumerate(variables_in(result))}
    found |= {f"kept/{kept}": getattr(model, kept).array for kept in case.kept}
    found = {path: _sample(array) for path, array in (found | {"loss": loss.array}).items()}
    if backprop:
        gradients = {f"input/{i}": x.grad for i, x in enumerate(given)}
        gradients |= {f"gradient{path}": param.grad for path, param in model.namedparams()}
        for path, grad in gradients.items():
            if grad is not None:
                found[path] = _sample(grad) / (loss_scale or 1)
    return found


def _sample(array):
    # Of an array of millions every k-th element is enough, with an odd k, which is no multiple of a row's length.
    if array.size > 2**20:
        array = array.ravel()[:: array.size // 2**19 | 1]
    return np.array(array, np.float64)


@contextlib.contextmanager
def configured(train, backprop, dtype):
    """The configuration in which a model of ``dtype`` is called."""
    # F.resize_images and F.bilinear can compute in float64, but check for float32.
    config = {"train": train, "enable_backprop": backprop, "dtype": np.dtype(dtype), "type_check": dtype == np.float32}
    with contextlib.ExitStack() as stack:
        for key, value in config.items():
            stack.enter_context(chainer.using_config(key, value))
        yield


def forward(model, case, seed, dtype=np.float32):
    """Calls a model; returns its floating inputs as variables, the result and the loss.

    The seed is that of the inputs and of ``np.random``, for dropout and the like.
    """
    inputs, given = _as_variables(case.inputs(np.random.RandomState(seed)), dtype)
    np.random.seed(seed)
    mixprec_functions.reset_dropout()
    method = getattr(model, case.method)
    if isinstance(inputs, dict):
        result = method(**inputs)
    else:
        result = method(*inputs) if isinstance(inputs, (tuple, list)) else method(inputs)
    return given, result, case.loss(model, result)


def _as_variables(inputs, dtype):
    given = []

    def convert(value):
        if isinstance(value, dict):
            return {key: convert(item) for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(convert(item) for item in value)
        if isinstance(value, np.ndarray) and value.dtype == np.float32:
            given.append(chainer.Variable(value.astype(dtype)))
            return given[-1]
        return value

    return convert(inputs), given


def converted(case, example=False, **how):
    """The model of a case, converted; ``example``: looked at right away, not in its first call."""
    model = new(case)
    inputs = case.inputs(np.random.RandomState(0)) if example else None
    mixprec.convert(model, tuple(inputs) if isinstance(inputs, list) else inputs, **how)
    return model


def statistics(model):
    """Everything a model keeps beside parameters, by name, in float64."""
    return {
        f"{path}/{name}": np.array(getattr(link, name), np.float64)
        for path, link in model.namedlinks()
        for name in sorted(link._persistent)
    }


@contextlib.contextmanager
def the_zeros_of_mixprec():
    """Chainer's dropout drops what mixprec's drops for the same state, whose order is that of (N, H, W, C)."""

    def forward(self, inputs):
        (x,) = inputs
        if self.mask is None:
            axes = (0, 2, 3, 1) if x.ndim == 4 else tuple(range(x.ndim))
            ones = np.ones([x.shape[axis] for axis in axes], np.float32)
            mask = mixprec_functions.dropout(ones, self.dropout_ratio).array
            self.mask = mask.transpose(np.argsort(axes)).astype(x.dtype)
        return (x * self.mask,)

    original = Dropout.forward_cpu
    Dropout.forward_cpu = forward
    try:
        yield
    finally:
        Dropout.forward_cpu = original


class NoClearInputs(Exception):
    """A model has gradients that jump, or amplify errors a hundred times, whatever the inputs."""


@contextlib.contextmanager
def rounding(dtype):
    """Everything that functions compute in float64, forward and backward, is rounded to a smaller dtype."""
    apply = FunctionNode.apply

    def rounded(self, inputs):
        outputs = apply(self, inputs)
        for y in outputs:
            # A warning comes with asking a broadcast array whether it is writeable.
            if y.dtype == np.float64 and 0 not in y.array.strides and y.array.flags.writeable:
                y.array[...] = y.array.astype(dtype)
        return outputs

    FunctionNode.apply = rounded
    try:
        yield
    finally:
        FunctionNode.apply = apply


@functools.cache
def reference(case):
    """Returns the :class:`Reference` of a case, for inputs where rounding decides nothing.

    A ReLU or a maximum whose inputs are as good as equal may go either way in float32, and moves gradients by far more
    than rounding does. Such inputs show in float64, too: if all weights are changed by a few millionths, up and down,
    a gradient jumps. The next seed is tried then, unless the model is large: there is always one.
    """
    large = case.large
    seeds, expected = [], []
    plan = LARGE_PLAN if large else PLAN
    runs = _runs(case, plan, seeds)
    if large and not statistics(runs[0]):
        plan = (TRAINING,)
    for train in plan:
        for seed in itertools.count(max(seeds, default=0) + 1):
            if seed > 100:
                raise NoClearInputs
            found, *moved = (run_plain(model, case, seed, train=train, dtype=np.float64) for model in runs)
            if not any(_jumps(found, other) for other in moved):
                break
            runs = _runs(case, plan, seeds)
        seeds.append(seed)
        expected.append(found)
    return Reference(plan, tuple(seeds), tuple(expected), statistics(runs[0]))


def _runs(case, plan, seeds):
    """Models in float64 after the calls of the seeds; of small ones also two with weights that are moved a bit."""
    runs = [new(case, np.float64) for _ in range(1 if case.large else 3)]
    for amount, model in zip((3e-6, -3e-6), runs[1:], strict=False):
        random = np.random.RandomState(1)
        for path, param in sorted(model.namedparams()):
            # From the weights, not in place: a parameter may have two names.
            param.array = weights(case)[path] * (1 + amount * random.normal(size=param.shape))
    for train, seed in zip(plan, seeds, strict=False):
        for model in runs:
            run_plain(model, case, seed, train=train, dtype=np.float64)
    return runs


def run_plain(model, case, seed, **how):
    """:func:`run` of a plain model, with the zeros that a converted one would have."""
    with the_zeros_of_mixprec():
        return run(model, case, seed, **how)


def _jumps(found, moved):
    return moved.keys() != found.keys() or max(distances(moved, found).values()) > 3e-4


def distances(found, expected):
    """Relative error of each array: the norm of the difference over the norm of what is expected.

    The gradient of a bias before a normalization is 0 but for rounding, though: an array that is below a millionth of
    the largest one of its link is measured by that one.
    """
    assert found.keys() == expected.keys(), set(found) ^ set(expected)
    norms = {name: np.linalg.norm(array) for name, array in expected.items()}
    largest = {}
    for name, norm in norms.items():
        assert np.isfinite(norm), name
        link = name.rpartition("/")[0]
        largest[link] = max(norm, largest.get(link, 0.0))
    errors = {}
    for name, norm in norms.items():
        scale = max(norm, largest[name.rpartition("/")[0]] if norm < 1e-6 * largest[name.rpartition("/")[0]] else 0.0)
        errors[name] = float(np.linalg.norm(found[name] - expected[name]) / (scale or 1.0))
    return errors
