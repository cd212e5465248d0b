"""What the tests of the bridge share: Chainer's functions on the device beside themselves on NumPy, in float64."""

import collections
import functools

import chainer
import numpy as np

from tests.backends.primitive_cases import EPS32, accumulated, arrays, assert_close, eps_of, exact

CONVOLUTIONS = ("convolution_forward", "convolution_backward_data", "convolution_backward_filter")
FUNCTIONS = (
    *CONVOLUTIONS,
    "batch_normalization_forward_training",
    "batch_normalization_forward_training_ex",
    "batch_normalization_forward_inference",
    "batch_normalization_backward",
    "pooling_forward",
    "pooling_backward",
    "activation_forward",
    "activation_backward",
    "softmax_forward",
    "softmax_backward",
)


class Bridge:
    """Counts what Chainer calls, from now on.

    Args:
        monkeypatch: of pytest.

    Attributes:
        calls: number of calls of each function of ``cupy.cudnn``; of dropout's methods as ``dropout_*``.
        own: names of those that Chainer has computed by its own path after all.
    """

    def __init__(self, monkeypatch):
        cudnn = chainer.backends.cuda.cudnn
        self.calls, self.own = collections.Counter(), []
        for name in FUNCTIONS:
            monkeypatch.setattr(cudnn, name, self._counting(name, getattr(cudnn, name)))
        for name in ("forward", "backward"):
            method = self._counting(f"dropout_{name}", getattr(cudnn.DropoutStates, name))
            monkeypatch.setattr(cudnn.DropoutStates, name, method)

        from mixprec.bridge import calls

        announce = calls.announce
        monkeypatch.setattr(calls, "announce", lambda *words: (self.own.append(words[1]), announce(*words)))

    def _counting(self, name, function):
        @functools.wraps(function)
        def call(*arguments, **options):
            self.calls[name] += 1
            return function(*arguments, **options)

        return call

    def used(self, **calls):
        """Asserts that exactly these functions were called so often since the last time, all by cuDNN."""
        assert dict(self.calls) == calls, dict(self.calls)
        assert not self.own, self.own
        self.calls.clear()


def device():
    return chainer.get_device("@cupy:0")


def send(value):
    """Copies an array to the device; ``None`` stays."""
    return None if value is None else device().send(value)


def receive(value):
    """Returns an array of the device as one of NumPy."""
    assert isinstance(value, chainer.backends.cuda.ndarray)
    return np.asarray(chainer.backends.cuda.to_cpu(value))


def run(function, inputs, dy):
    """Returns ``(y, gradients)`` of a function of variables; an input may be ``None``."""
    variables = [None if array is None else chainer.Variable(array) for array in inputs]
    y = function(*variables)
    y.grad = dy
    y.backward()
    return y.array, [None if variable is None else variable.grad for variable in variables]


def on_device(function, inputs, dy):
    """As :func:`run`, there and back."""
    y, gradients = run(function, [send(array) for array in inputs], send(dy))
    return receive(y), [None if gradient is None else receive(gradient) for gradient in gradients]


def output_like(function, inputs, seed=1):
    """Returns random numbers in the shape of a function's result."""
    shape = function(*[exact(array) for array in inputs]).shape
    return arrays(np.random.default_rng(seed), shape, inputs[0].dtype)


def check_linear(function, inputs, *, count=None, magnitudes=None, sums=(), roundings=1):
    """Compares a function that is linear in each input, forward and gradients, with float64.

    A sum of ``n`` products is wrong by ``n * 2**-24 * sum of |products|``. The number is the result for ones, the sum
    of absolute values that for absolute values.

    Args:
        function: of variables.
        inputs: arrays of NumPy, of one dtype; ``None`` stays.
        count: the largest number of terms, where ones do not tell.
        magnitudes: ``magnitudes(|dy|)``, where absolute values of all inputs do not tell.
        sums: numbers of the inputs whose gradients Chainer sums up itself, in the storage dtype.
        roundings: how often a result is rounded to the storage dtype.
    """
    dtype, dy = inputs[0].dtype, output_like(function, inputs)
    found, found_gradients = on_device(function, inputs, dy)
    wide = [exact(array) for array in inputs]
    expected, gradients = run(function, wide, exact(dy))
    absolute = [None if array is None else np.abs(array) for array in wide]
    largest = magnitudes(np.abs(exact(dy))) if magnitudes else run(function, absolute, np.abs(exact(dy)))
    if count is None:
        ones = [None if array is None else np.ones_like(array) for array in wide]
        counts = run(function, ones, np.ones_like(expected))
    else:
        counts = count, [count] * len(inputs)

    def bound(n, magnitude):
        return accumulated(n, magnitude) + (roundings - 1) * eps_of(dtype) * np.abs(magnitude)

    assert_close(found, expected, dtype, bound(counts[0], largest[0]))
    for place, (gradient, wanted) in enumerate(zip(found_gradients, gradients, strict=True)):
        if wanted is not None:
            allowed = bound(counts[1][place], largest[1][place])
            if place in sums:
                allowed = allowed * eps_of(dtype) / EPS32
            assert_close(gradient, wanted, dtype, allowed)
    return found, found_gradients
