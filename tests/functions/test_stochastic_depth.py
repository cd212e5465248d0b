"""Stochastic depth beside float64 and PyTorch: which rows are dropped, what is repeated, the order in memory."""

import itertools
import statistics

import chainer
import numpy as np
import pytest
from chainer import serializers

import mixprec
from mixprec import functions as F
from mixprec import links
from mixprec.backends import dropout_state, primitives_of
from mixprec.functions.stochastic_depth import row_factors
from tests.functions import nhwc
from tests.functions.nhwc import DTYPES, EPS32, assert_rounded, normal, wide

RATIO = 0.3
RARE = statistics.NormalDist().inv_cdf(1 - 1e-6)  # standard deviations
ROWS = 64


def seed(number=0):
    np.random.seed(number)
    F.reset_dropout()


def factors_of(number=0, count=ROWS, ratio=RATIO):
    """The factors of the first call after :func:`seed`."""
    seed(number)
    found = row_factors(np.empty((count, 1), np.float32), ratio)
    seed(number)
    return found


def run(function, *arrays, dy=None):
    return nhwc.run(function, arrays, dy)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 5), (ROWS, 3, 4, 8)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_dropped_and_others_divided(dtype, shape):
    x, of_rows = normal(0, *shape, dtype=dtype), wide(factors_of()).reshape(-1, *[1] * (len(shape) - 1))
    y, (dx,), dy = run(lambda x: F.stochastic_depth(x, RATIO), x)
    for found, of in ((y, x), (dx, dy)):
        expected = wide(of) * of_rows
        assert_rounded(found, expected, dtype, EPS32 * np.abs(expected))
    kept = (y.reshape(ROWS, -1) != 0).any(1)
    assert 0 < kept.sum() < ROWS
    assert (wide(of_rows)[kept] > 1).all()


def test_a_row_is_dropped_as_a_whole_and_each_by_itself():
    y = F.stochastic_depth(np.ones((4000, 7), np.float32), RATIO).array
    assert ((y == 0).all(1) | (y == np.float32(1) / np.float32(1 - RATIO)).all(1)).all()
    dropped = y[:, 0] == 0
    for share, expected in ((dropped.mean(), RATIO), ((dropped[1:] & dropped[:-1]).mean(), RATIO**2)):
        assert abs(share - expected) / np.sqrt(expected * (1 - expected) / len(y)) < RARE


@pytest.mark.parametrize("relu", [False, True])
def test_the_fused_block_is_that_of_torch_nn(relu):
    """relu(drop(bn(x)) + shortcut), forward and backward, beside torch.nn.BatchNorm2d in float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    shape, factors = (ROWS, 5, 4, 7), wide(factors_of())
    x, shortcut, dy = (normal(number, *shape) for number in range(3))
    gamma, beta, running = normal(3, 7), normal(4, 7), [normal(5, 7), np.abs(normal(6, 7))]
    norm = torch.nn.BatchNorm2d(7, eps=2e-5, momentum=0.1, dtype=torch.float64)
    with torch.no_grad():
        for theirs, ours in zip(
            (norm.weight, norm.bias, norm.running_mean, norm.running_var), (gamma, beta, *running), strict=True
        ):
            theirs.copy_(torch.tensor(ours))
    inputs = [torch.tensor(wide(each).transpose(0, 3, 1, 2), requires_grad=True) for each in (x, shortcut)]
    expected = norm(inputs[0]) * torch.tensor(factors.reshape(-1, 1, 1, 1)) + inputs[1]
    expected = torch.relu(expected) if relu else expected
    expected.backward(torch.tensor(wide(dy).transpose(0, 3, 1, 2)))

    def ours(x, gamma, beta, shortcut):
        return F.batch_normalization(
            *(x, gamma, beta),
            running_mean=running[0],
            running_var=running[1],
            add=shortcut,
            relu=relu,
            stochastic_depth=RATIO,
        )

    y, (dx, dgamma, dbeta, dshortcut), _ = run(ours, x, gamma, beta, shortcut, dy=dy)
    in_nhwc = [each.detach().numpy().transpose(0, 2, 3, 1) for each in (expected, inputs[0].grad, inputs[1].grad)]
    for found, right in zip((y, dx, dshortcut), in_nhwc, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    for found, right in ((dgamma, norm.weight.grad), (dbeta, norm.bias.grad)):
        np.testing.assert_allclose(found, right.numpy(), rtol=1e-4, atol=1e-4)
    for found, right in zip(running, (norm.running_mean, norm.running_var), strict=True):
        np.testing.assert_allclose(found, right.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_in_memory_decides_nothing_and_stays(dtype):
    """Images (N, C, H, W) whose memory is that of (N, H, W, C), and gradients in either order."""
    x, dy = normal(0, ROWS, 3, 4, 8, dtype=dtype), normal(1, ROWS, 3, 4, 8, dtype=dtype)
    seed()
    expected, (slope,), _ = run(lambda x: F.stochastic_depth(x, RATIO), x, dy=dy)
    turned = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for gradient in (dy, np.ascontiguousarray(dy.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)):
        seed()
        y, (dx,), _ = run(lambda x: F.stochastic_depth(x, RATIO), turned, dy=gradient)
        assert y.strides == dx.strides == turned.strides
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(dx, slope)


def test_it_is_the_input_itself_in_evaluation_and_for_a_ratio_of_0():
    x = chainer.Variable(normal(0, 4, 3))
    state = None if (found := dropout_state.dropout_state(x.array)) is None else found.copy()
    assert F.stochastic_depth(x, 0.0) is x
    assert F.stochastic_depth(x, 0) is x
    with chainer.using_config("train", False):
        assert F.stochastic_depth(x, 0.9) is x
        assert isinstance(F.stochastic_depth(x.array, 0.9), chainer.Variable)
    np.testing.assert_equal(dropout_state.dropout_state(x.array), state)


@pytest.mark.parametrize("ratio", [1, 1.0, -0.1, "0.5", None, np.nan])
def test_a_ratio_out_of_range(ratio):
    with pytest.raises((TypeError, ValueError), match=r"stochastic_depth: ratio must be .*from 0 to below 1; found"):
        F.stochastic_depth(np.ones((2, 2), np.float32), ratio)


def test_other_arguments_that_do_not_fit():
    with pytest.raises(TypeError, match=r"stochastic_depth: x must be float16, bfloat16 or float32; found float64"):
        F.stochastic_depth(np.ones((2, 2)), 0.5)
    with pytest.raises(ValueError, match=r"stochastic_depth: x must be \(N, \.\.\.\); found shape \(\)"):
        F.stochastic_depth(np.zeros((), np.float32), 0.5)
    with pytest.raises(TypeError, match="stochastic_depth: x must be an array or a variable; found"):
        F.stochastic_depth([1.0], 0.5)
    ones = np.ones(3, np.float32)
    with pytest.raises(ValueError, match=r"batch_normalization: stochastic_depth needs add, the shortcut; found 0\.5"):
        F.batch_normalization(normal(0, 4, 3), ones, ones, stochastic_depth=0.5)


def test_it_draws_from_the_state_of_dropout():
    """One key each, so that a file of the optimizer has it, and a resumed run goes on with the same rows."""
    x = np.ones((ROWS, 1), np.float32)
    seed()
    F.dropout(x)
    state = dropout_state.dropout_state(x)
    saved = serializers.DictionarySerializer()
    device = chainer.get_device("@numpy")
    F.serialize_dropout(saved, [device])
    before = state.copy()
    expected = [F.stochastic_depth(x, 0.5).array for _ in range(3)]
    assert state.tolist() == [before[0], before[1] + 3]
    assert any((one != other).any() for one, other in itertools.pairwise(expected))
    F.reset_dropout()
    F.stochastic_depth(x, 0.5)
    F.serialize_dropout(serializers.NpzDeserializer(saved.target), [device])
    for y in expected:
        np.testing.assert_array_equal(F.stochastic_depth(x, 0.5).array, y)


def test_recomputed_and_offloaded_blocks_drop_the_same_rows():
    """``F.forget`` draws anew, as for dropout; mixprec.recompute does not."""
    x, block = normal(0, ROWS, 6), lambda x: F.stochastic_depth(x * x, 0.5)
    found = []
    for function in (block, mixprec.recompute(lambda x: block(x))):
        seed()
        found.append(run(function, x))
        assert dropout_state.dropout_state(x)[1] == 1
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1][0], found[1][1][0])


def test_the_link_drops_in_training_only():
    link = links.BatchNormalization(5)
    x, add = normal(0, ROWS, 5), normal(1, ROWS, 5)
    factors = factors_of()
    y = link(x, add=add, relu=True, stochastic_depth=RATIO).array
    closed = factors == 0
    np.testing.assert_array_equal(y[closed], np.maximum(add, 0)[closed])
    assert (y[~closed] != np.maximum(add, 0)[~closed]).any()
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(link(x, add=add, stochastic_depth=RATIO).array, link(x, add=add).array)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_drops_the_rows_that_numpy_does(dtype):
    import cupy

    x = normal(0, ROWS, 3, 4, 8, dtype=dtype)
    for seeded in range(3):
        expected = factors_of(seeded)
        found = F.stochastic_depth(cupy.asarray(x), RATIO)
        np.testing.assert_array_equal(cupy.asnumpy(found.array), primitives_of(x).scale_rows(x, expected), strict=True)
