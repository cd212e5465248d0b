"""Two models of the same parts and weights, one plain and one converted, that are called side by side.

Everything is compared in float32: results, the gradients of parameters and inputs, running statistics.
"""

import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

import mixprec
from mixprec.precision.conversion_state import state_of

WIDTH = 4
SHAPE = (3, 3, 6, 6)


class Parts(chainer.Chain):
    """A stem, convolutions with normalizations and a head; what is done with them is a function of (model, x).

    Attributes:
        notes: where the function leaves what a test wants to see.
    """

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.notes = []
        with self.init_scope():
            self.stem = L.Convolution2D(3, WIDTH, 3, pad=1, nobias=True)
            self.conv1 = L.Convolution2D(WIDTH, WIDTH, 3, pad=1, nobias=True)
            self.bn1 = L.BatchNormalization(WIDTH)
            self.conv2 = L.Convolution2D(WIDTH, WIDTH, 3, pad=1, nobias=True)
            self.bn2 = L.BatchNormalization(WIDTH)
            self.conv3 = L.Convolution2D(WIDTH, WIDTH, 1, nobias=True)
            self.bn3 = L.BatchNormalization(WIDTH)

    def forward(self, x):
        return self.function(self, x)


def new(function):
    """Returns plain :class:`Parts` with seeded weights; those of normalizations are no ones and zeros."""
    np.random.seed(0)
    model = Parts(function)
    for name, param in sorted(model.namedparams()):
        if name.endswith(("gamma", "beta")):
            param.array[...] = np.random.uniform(-1, 1, param.shape) + (1.5 if name.endswith("gamma") else 0)
    return model


def images(seed, shape=SHAPE):
    return np.random.RandomState(seed).normal(size=shape).astype(np.float32)


def step(model, x):
    """Calls a model and goes back through it; returns all that has come out, by name, as copies."""
    x = chainer.Variable(x.copy())
    model.cleargrads()
    result = model(x)
    found = {}
    if chainer.config.enable_backprop:
        loss = 0.0
        for number, y in enumerate(result if isinstance(result, tuple) else (result,)):
            weights = np.random.RandomState(number).uniform(-1, 1, y.shape).astype(np.float32)
            loss += F.sum(y * y * weights)
        loss.backward()
        found |= {f"gradient{name}": param.grad for name, param in model.namedparams()}
        found["gradient of x"] = x.grad
    for number, y in enumerate(result if isinstance(result, tuple) else (result,)):
        found[f"result {number}"] = y.array
    return copy.deepcopy(found | statistics(model))


def statistics(model):
    """Returns running statistics by name."""
    return {
        f"{path}/{name}": getattr(link, name)
        for path, link in model.namedlinks()
        if isinstance(link, L.BatchNormalization)
        for name in ("avg_mean", "avg_var", "N")
    }


def assert_same(found, expected, rtol=2e-5):
    """Each array is the expected one: the largest difference is ``rtol`` of its largest element, or less."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        if array is None:
            assert found[name] is None, name
            continue
        assert found[name] is not None, name
        assert np.shape(found[name]) == np.shape(array), name
        error = np.abs(np.float64(found[name]) - array).max()
        assert error <= rtol * np.abs(array).max(), (name, error, np.abs(array).max())


def beside(function, calls=4, **how):
    """Calls a converted model and its plain twin on the same images, and compares them after each call.

    Returns:
        The converted model and its report.
    """
    plain, converted = new(function), new(function)
    report = mixprec.convert(converted, compute="float32", **how)
    for call in range(calls):
        expected = step(plain, images(call))
        found = step(converted, images(call))
        try:
            assert_same(found, expected)
        except AssertionError as error:
            raise AssertionError(f"call {call}: {error}") from error
    return converted, report


def site(link, train=True, turn=0):
    """Returns the place of a batch normalization in the plan of fusion."""
    return state_of(link).normalization_sites[train, turn]


def fusions(model):
    """Returns with what each normalization is fused, or why it is not, by name of the link."""
    return {
        name: [
            each.fused or each.why for (train, _), each in sorted(state_of(link).normalization_sites.items()) if train
        ]
        for name, link in model.namedlinks()
        if isinstance(link, L.BatchNormalization)
    }
