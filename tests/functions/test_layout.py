"""Layout, casts and dropout of variables."""

import multiprocessing

import chainer
import numpy as np
import pytest

from mixprec import functions as F
from tests.functions.nhwc import DTYPES, EPS, normal, run, wide


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", [None, *DTYPES])
def test_to_nhwc_and_back(source, target):
    x = normal(0, 2, 3, 4, 5, dtype=source)
    y, (dx,), dy = run(lambda x: F.to_nhwc(x, target, 8), [x])
    np.testing.assert_array_equal(y[..., :3], x.transpose(0, 2, 3, 1).astype(target or source), strict=True)
    assert y.shape == (2, 4, 5, 8)
    assert not y[..., 3:].any()
    np.testing.assert_array_equal(dx, dy[..., :3].transpose(0, 3, 1, 2).astype(source), strict=True)

    x = normal(1, 2, 4, 5, 8, dtype=source)
    y, (dx,), dy = run(lambda x: F.to_nchw(x, target, 3), [x])
    np.testing.assert_array_equal(y, x[..., :3].transpose(0, 3, 1, 2).astype(target or source), strict=True)
    np.testing.assert_array_equal(dx[..., :3], dy.transpose(0, 2, 3, 1).astype(source), strict=True)
    assert not dx[..., 3:].any()


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast(source, target):
    x = chainer.Variable(normal(0, 2, 3, dtype=source))
    y = F.cast(x, target)
    if source == target:
        assert y is x
        return
    np.testing.assert_array_equal(y.array, x.array.astype(target), strict=True)
    dy = normal(1, 2, 3, dtype=target)
    y.grad = dy
    y.backward()
    np.testing.assert_array_equal(x.grad, dy.astype(source), strict=True)


@pytest.fixture
def fresh_states():
    np.random.seed(0)
    F.reset_dropout()
    yield
    F.reset_dropout()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_and_its_gradient_keep_the_same_elements(fresh_states, dtype):
    x = np.ones((40, 250), dtype)
    y, (dx,), dy = run(lambda x: F.dropout(x, 0.3), [x])
    kept = y != 0
    assert abs(kept.mean() - 0.7) < 0.02  # 4 standard deviations of 10,000 draws
    np.testing.assert_allclose(wide(y[kept]), 1 / 0.7, rtol=EPS[dtype] + 1e-7)
    np.testing.assert_array_equal(dx != 0, kept & (dy != 0))
    np.testing.assert_allclose(wide(dx[kept]), wide(dy[kept]) / 0.7, rtol=EPS[dtype] + 1e-6)


def test_dropout_does_nothing_outside_of_training(fresh_states):
    x = chainer.Variable(np.ones(10, np.float32))
    with chainer.using_config("train", False):
        assert F.dropout(x) is x


def _send(connection):
    np.random.seed(5)
    connection.send(F.dropout(np.ones(1000, np.float32)).array)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_a_state_of_its_own(fresh_states):
    np.random.seed(5)
    expected = F.dropout(np.ones(1000, np.float32)).array
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(sender,))
    process.start()
    np.testing.assert_array_equal(receiver.recv(), expected)
    process.join()


MESSAGES = [
    (
        lambda: F.to_nhwc(np.zeros((2, 3, 4, 5), "f"), channels=2),
        ValueError,
        "to_nhwc: x must be (N, C, H, W) with at most 2 channels; found shape (2, 3, 4, 5)",
    ),
    (
        lambda: F.to_nhwc(np.zeros((2, 3, 4, 5), "u1")),
        TypeError,
        "to_nhwc: x must be float16, bfloat16 or float32; found uint8",
    ),
    (
        lambda: F.cast(np.zeros(2, "f"), "float64"),
        ValueError,
        "cast: dtype must be one of float16, bfloat16, float32, fp16, half, bf16, fp32, single; found 'float64'; "
        "did you mean 'float16'?",
    ),
    (lambda: F.dropout(np.zeros(2, "f"), 1.0), ValueError, "dropout: ratio must be from 0 to below 1; found 1.0"),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
