"""Activation functions in Chainer's layout, on the host and on a GPU, beside Chainer's own on NumPy."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.activation.clipped_relu import ClippedReLUGrad2
from chainer.functions.activation.relu import ReLUGrad2
from chainer.functions.activation.sigmoid import SigmoidGrad
from chainer.functions.activation.tanh import TanhGrad
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.nchw.activation import Activations
from tests.backends import primitive_cases as cases
from tests.cases import tries
from tests.stand_ins.kernels_on_host import odd_values

MODES = ("relu", "clipped_relu", "sigmoid", "tanh")
modes = pytest.mark.parametrize("mode", MODES)
# Of less than a vector, a vector, a block on the host, one on a GPU, with and without a rest.
shapes = st.sampled_from([(), (1,), (7,), (2, 4), (3, 3), (5, 1, 7, 3), (512,), (513,), (4, 8, 8, 8), (2051,)])


class Device:
    """Activation functions of NumPy arrays on one side, the host or a GPU."""

    def __init__(self, side):
        self.side = side
        self.activations = Activations(side.cuda.launcher, side.cuda.cudnn)

    def forward(self, x, *arguments, misaligned=False):
        """Returns y."""
        return self.side.receive(self.activations.activation(self.side.send(x, misaligned), *arguments))

    def backward(self, x, y, dy, *arguments, misaligned=False):
        """Returns dx."""
        x, y, dy = (self.side.send(array, misaligned) for array in (x, y, dy))
        return self.side.receive(self.activations.activation_backward(x, y, dy, *arguments))


@pytest.fixture(scope="module")
def device(each_side):
    return Device(each_side)


def forward_of_chainer(x, mode, coef):
    """Returns y in float64, and its bound in float32, in which tanh is right to 2 ulp."""
    function = {"relu": F.relu, "clipped_relu": lambda x: F.clipped_relu(x, coef), "sigmoid": F.sigmoid, "tanh": F.tanh}
    y = function[mode](cases.exact(x)).array
    return y, {"sigmoid": cases.accumulated(3, 1), "tanh": cases.accumulated(3, np.abs(y))}.get(mode, 0)


def backward_of_chainer(x, y, dy, mode, coef):
    """Returns dx in float64, and its bound in float32."""
    x, y, dy = map(cases.exact, (x, y, dy))
    if mode in ("relu", "clipped_relu"):
        gradient = ReLUGrad2(y) if mode == "relu" else ClippedReLUGrad2(x, coef)
        return gradient.apply((dy,))[0].array, 0
    gradient = SigmoidGrad((None,)) if mode == "sigmoid" else TanhGrad(None)
    dx = gradient.apply(tuple(map(chainer.as_variable, (y, dy))))[0].array
    return dx, cases.accumulated(3, np.abs(dx) if mode == "sigmoid" else np.abs(dy) * (1 + y * y))


@settings(max_examples=tries(120))
@given(
    shape=shapes,
    mode=st.sampled_from(MODES),
    coef=st.floats(0.0625, 1000, width=16),
    dtype=cases.storage_dtypes,
    odd=st.booleans(),
    misaligned=st.booleans(),
    seed=cases.seeds,
)
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # a signalling NaN
def test_activations_are_chainers(device, shape, mode, coef, dtype, odd, misaligned, seed):
    rng = np.random.default_rng(seed)
    x = odd_values(rng, shape, dtype) if odd else cases.arrays(rng, shape, dtype, 3.0)
    y = device.forward(x, mode, coef, misaligned=misaligned)
    expected, bound = forward_of_chainer(x, mode, coef)
    cases.assert_close(y, expected, dtype, bound)

    dy = cases.arrays(rng, shape, dtype)
    dx = device.backward(x, y, dy, mode, coef, misaligned=misaligned)
    expected, bound = backward_of_chainer(x, y, dy, mode, coef)
    cases.assert_close(dx, expected, dtype, bound)


@pytest.mark.parametrize("dtype", cases.STORAGE, ids=str)
def test_at_the_edges(device, dtype):
    """Where a function has a kink it has no slope; there are no infinite numbers times 0."""
    x = np.array([-np.inf, -1, -0.0, 0, 0.5, 6, 7, np.inf, np.nan], dtype)
    dy = np.full(x.shape, np.inf, dtype)

    def both(mode):
        y = device.forward(x, mode, 6.0)
        return cases.exact(y), cases.exact(device.backward(x, y, dy, mode, 6.0))

    inf, nan = np.inf, np.nan
    y, dx = both("relu")
    np.testing.assert_array_equal(y, [0, 0, 0, 0, 0.5, 6, 7, inf, nan])
    np.testing.assert_array_equal(dx, [0, 0, 0, 0, inf, inf, inf, inf, 0])
    y, dx = both("clipped_relu")
    np.testing.assert_array_equal(y, [0, 0, 0, 0, 0.5, 6, 6, 6, nan])
    np.testing.assert_array_equal(dx, [0, 0, 0, 0, inf, 0, 0, 0, 0])
    np.testing.assert_array_equal(both("sigmoid")[0][[0, 2, 3, 7, 8]], [0, 0.5, 0.5, 1, nan])
    np.testing.assert_array_equal(both("tanh")[0][[0, 2, 3, 7, 8]], [-1, 0, 0, 1, nan])


@modes
def test_only_what_is_needed_is_read(device, mode):
    x = cases.arrays(np.random.default_rng(0), (3, 5), cases.FLOAT16)
    y = device.forward(x, mode, 0.5)
    expected = device.backward(x, y, x, mode, 0.5)
    needed = (x, None) if mode == "clipped_relu" else (None, y)
    np.testing.assert_array_equal(device.backward(*needed, x, mode, 0.5), expected)


@modes
@pytest.mark.parametrize(("shape", "launches"), [((0, 3), 0), ((3, 700), 1)])
def test_one_launch_or_none_of_nothing(device, mode, shape, launches):
    if device.side.is_gpu:
        pytest.skip("counts launches of the stand-in")
    x, launched = np.ones(shape, np.float16), device.side.cuda.launcher.launches
    before = len(launched)
    y = device.forward(x, mode, 2.0)
    assert (y.shape, len(launched) - before) == (shape, launches)
    assert device.backward(x, y, x, mode, 2.0).shape == shape
    assert len(launched) - before == 2 * launches
