"""Batch normalization of variables in NHWC beside Chainer's in NCHW and float64."""

import chainer
import chainer.functions as CF
import numpy as np
import pytest

from mixprec import functions as F
from tests.cases import pairs
from tests.functions.nhwc import DTYPES, EPS32, assert_rounded, normal, run, to_nchw, wide

SHAPE = (4, 6, 5, 7)
ELEMENTS = 4 * 6 * 5


def _arrays(dtype, added):
    x = (normal(0, *SHAPE) * 2 + 3).astype(dtype)
    return [x, normal(1, 7) + 1, normal(2, 7), normal(3, *SHAPE, dtype=dtype)][: 4 if added else 3]


def _statistics():
    return [normal(4, 7), np.abs(normal(5, 7)) + 0.5]


def _in_nchw(function, arrays, dy, relu, **rest):
    """Result and gradients of Chainer's functions in float64, in NHWC again."""

    def whole(x, gamma, beta, add=None):
        y = function(x, gamma, beta, **rest)
        y = y if add is None else y + add
        return CF.relu(y) if relu else y

    y, gradients, _ = run(whole, [to_nchw(wide(array)) for array in arrays], to_nchw(wide(dy)))
    return [array.transpose(0, 2, 3, 1) if array.ndim == 4 else array for array in (y, *gradients)]


def _assert_right(found, exact, dtype):
    for each, right in zip(found, exact, strict=True):
        assert_rounded(
            each, right, dtype if right.ndim == 4 else np.float32, 8 * ELEMENTS * EPS32 * np.abs(right).max()
        )


every_way = pytest.mark.parametrize(("dtype", "added", "relu"), pairs(DTYPES, [False, True], [False, True]))


@every_way
def test_training_is_chainers(dtype, added, relu):
    arrays, (mean, variance) = _arrays(dtype, added), _statistics()
    y, gradients, dy = run(
        lambda x, gamma, beta, add=None: F.batch_normalization(
            x, gamma, beta, eps=1e-3, running_mean=mean, running_var=variance, decay=0.7, add=add, relu=relu
        ),
        arrays,
    )
    expected = [wide(array) for array in _statistics()]
    exact = _in_nchw(
        CF.batch_normalization, arrays, dy, relu, eps=1e-3, running_mean=expected[0], running_var=expected[1], decay=0.7
    )
    _assert_right([y, *gradients], exact, dtype)
    np.testing.assert_allclose([mean, variance], expected, rtol=1e-6, atol=1e-6)


@every_way
def test_testing_is_chainers(dtype, added, relu):
    arrays, (mean, variance) = _arrays(dtype, added), _statistics()
    y, gradients, dy = run(
        lambda x, gamma, beta, add=None: F.fixed_batch_normalization(
            x, gamma, beta, mean, variance, 1e-3, add=add, relu=relu
        ),
        arrays,
    )
    exact = _in_nchw(
        lambda *inputs: CF.fixed_batch_normalization(*inputs, wide(mean), wide(variance), 1e-3), arrays, dy, relu
    )
    _assert_right([y, *gradients], exact, dtype)


def test_gradients_in_testing_are_of_the_statistics_of_the_forward_pass():
    """Also if a training pass moves them before the backward pass; gamma's is the sum of normalized x."""
    x, gamma, beta = map(chainer.Variable, _arrays(np.float32, added=False))
    mean, var = _statistics()
    invstd = 1 / np.sqrt(var.astype(np.float64) + 2e-5)
    expected = ((x.array - mean.astype(np.float64)) * invstd).sum(axis=(0, 1, 2))
    y = F.fixed_batch_normalization(x, gamma, beta, mean, var)
    mean += 1
    var *= 4
    y.grad = np.ones_like(y.array)
    y.backward()
    np.testing.assert_allclose(gamma.grad, expected, rtol=1e-4)
    np.testing.assert_allclose(x.grad, np.broadcast_to(gamma.array * invstd, SHAPE), rtol=1e-5)


def test_two_axes():
    arrays = [normal(0, 9, 7), normal(1, 7), normal(2, 7)]
    y, gradients, dy = run(F.batch_normalization, arrays)
    exact, gradients_exact, _ = run(CF.batch_normalization, [wide(array) for array in arrays], wide(dy))
    for found, right in zip([y, *gradients], [exact, *gradients_exact], strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_a_channel_of_constants_and_values_near_the_largest():
    x = np.zeros((2, 4, 4, 3), np.float16)
    x[..., 0], x[..., 1], x[..., 2] = 7, 65504, normal(0, 2, 4, 4) * 60000 / 4
    ones = np.ones(3, np.float32)
    y, gradients, _ = run(lambda *inputs: F.batch_normalization(*inputs, relu=True), [x, ones, ones])
    assert (y[..., :2] == 1).all()
    assert all(np.isfinite(array).all() for array in (y, *gradients))


def test_one_element_in_a_channel_gives_beta_and_a_warning():
    x, gamma, beta = normal(0, 1, 1, 1, 4, dtype=np.float16), normal(1, 4), normal(2, 4)
    with pytest.warns(UserWarning, match=r"batch_normalization: x \(1, 1, 1, 4\) has one element in each channel"):
        y = F.batch_normalization(x, gamma, beta)
    np.testing.assert_array_equal(y.array[0, 0, 0], beta.astype(np.float16))


def test_what_is_retained_is_the_input_not_the_result():
    x, *rest = (chainer.Variable(array) for array in _arrays(np.float16, True))
    for relu in (False, True):
        y = F.batch_normalization(x, *rest[:2], add=rest[2], relu=relu)
        node = y.creator_node
        assert [variable.data is not None for variable in node.inputs] == [True, True, True, False]
        assert y.node.data is None
        assert (node._saved.mask is not None) == relu
    y = F.fixed_batch_normalization(x, *rest[:2], *_statistics(), add=rest[2])
    assert y.node.data is None
    y = F.fixed_batch_normalization(x, *rest[:2], *_statistics(), add=rest[2], relu=True)
    assert y.node.data is not None


def _zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


MESSAGES = [
    (
        lambda: F.batch_normalization(_zeros(2, 7, 5, 5), _zeros(7), _zeros(7)),
        ValueError,
        "batch_normalization: x must be (N, H, W, 7); found shape (2, 7, 5, 5), which looks like (N, C, H, W): "
        "use to_nhwc()",
    ),
    (
        lambda: F.batch_normalization(_zeros(2, 5, 5, 7), _zeros(6), _zeros(6)),
        ValueError,
        "batch_normalization: gamma must have shape (7,); found (6,)",
    ),
    (
        lambda: F.batch_normalization(_zeros(2, 5, 5, 7), _zeros(7), _zeros(7), add=_zeros(2, 5, 7, 5)),
        ValueError,
        "batch_normalization: add must have the shape of x, (2, 5, 5, 7); found (2, 5, 7, 5)",
    ),
    (
        lambda: F.batch_normalization(_zeros(2, 5, 5, 7), _zeros(7), _zeros(7), running_mean=_zeros(7)),
        ValueError,
        "batch_normalization: running_mean and running_var go together; found only one of them",
    ),
    (
        lambda: F.batch_normalization(_zeros(2, 5, 5, 7), _zeros(7), _zeros(7), sums=_zeros(7)),
        ValueError,
        "batch_normalization: sums must be (2, 7) float32; found (7,) float32",
    ),
    (
        lambda: F.fixed_batch_normalization(_zeros(2, 7), _zeros(7), _zeros(7), _zeros(7), _zeros(6)),
        ValueError,
        "fixed_batch_normalization: variance must have shape (7,); found (6,)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
