"""Kernels of softmax cross entropy, run on the host, beside FP64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import (
    FLOAT16,
    FLOAT32,
    MIXED,
    STORAGE,
    accumulated,
    arrays,
    assert_close,
    binary_cross_entropy,
    binary_cross_entropy_bounds,
    exact,
    labels,
    mixed_labels,
    seeds,
    softmax_cross_entropy,
    softmax_cross_entropy_bounds,
    storage_dtypes,
)
from tests.cases import tries
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.kernels_on_host import OwnKernels, odd_values, receive, send

# A thread, some threads, a warp, and a block for a row, whole groups of classes or not.
classes = st.sampled_from([1, 2, 3, 8, 10, 21, 33, 64, 100, 136, 520, 1000])


@pytest.fixture(scope="module")
def device():
    return OwnKernels(HostLauncher())


def _sent(mixed):
    return None if mixed is None else tuple(map(send, mixed))


@settings(max_examples=tries(80))
@given(
    count=st.sampled_from([1, 2, 5, 17]),
    number=classes,
    dtype=storage_dtypes,
    weighted=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    ignore_label=st.sampled_from([-1, 255, 0]),
    spread=st.sampled_from([1.0, 20.0, 1000.0]),
    one_factor=st.booleans(),
    kind=st.sampled_from(MIXED),
    misaligned=st.booleans(),
    seed=seeds,
)
def test_softmax_cross_entropy(
    device, count, number, dtype, weighted, smoothing, ignore_label, spread, one_factor, kind, misaligned, seed
):
    rng = np.random.default_rng(seed)
    x, t = arrays(rng, (count, number), dtype, spread), labels(rng, count, number, ignore_label)
    class_weight = rng.uniform(0.5, 2, number).astype(np.float32) if weighted else None
    options = {"smoothing": smoothing, "ignore_label": ignore_label}
    mixed = mixed_labels(rng, t, count, number, kind)
    given_ = {**options, "class_weight": send(class_weight) if weighted else None, "mixed": _sent(mixed)}
    losses, log_z = device.softmax_cross_entropy(send(x, misaligned), send(t), **given_)
    options |= {"class_weight": class_weight, "mixed": mixed}

    expected, expected_log_z, gradient = softmax_cross_entropy(x, t, **options)
    loss_bound, log_z_bound, gradient_bound = softmax_cross_entropy_bounds(x, class_weight, expected_log_z)
    assert_close(receive(losses), expected, FLOAT32, loss_bound)
    assert_close(receive(log_z), expected_log_z, FLOAT32, log_z_bound)
    assert (receive(losses)[t == ignore_label] == 0).all()

    factors = np.array(128, np.float32) if one_factor else arrays(rng, count, np.float32)
    half = send(np.float32(0.5)) if weighted else None
    dx = device.softmax_cross_entropy_backward(
        send(factors), send(x, misaligned), send(t), log_z, factor=half, **given_
    )
    by_row = np.broadcast_to(exact(factors), count)[:, None] * (0.5 if weighted else 1)
    assert_close(receive(dx), gradient * by_row, dtype, gradient_bound * np.abs(by_row))
    assert not receive(dx)[t == ignore_label].any()


@settings(max_examples=tries(60))
@given(
    count=st.sampled_from([1, 2, 5, 17]),
    number=classes,
    dtype=storage_dtypes,
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    threshold=st.sampled_from([None, 0.0, 0.2]),
    ignore_label=st.sampled_from([-1, 255, 0]),
    spread=st.sampled_from([1.0, 20.0, 1000.0]),
    kind=st.sampled_from(MIXED),
    misaligned=st.booleans(),
    seed=seeds,
)
def test_binary_cross_entropy(
    device, count, number, dtype, smoothing, threshold, ignore_label, spread, kind, misaligned, seed
):
    rng = np.random.default_rng(seed)
    x, t = arrays(rng, (count, number), dtype, spread), labels(rng, count, number, ignore_label)
    options = {"smoothing": smoothing, "threshold": threshold, "ignore_label": ignore_label}
    mixed = mixed_labels(rng, t, count, number, kind)
    expected, gradient = binary_cross_entropy(x, t, mixed=mixed, **options)
    loss_bound, gradient_bound = binary_cross_entropy_bounds(x)
    losses = device.binary_cross_entropy(send(x, misaligned), send(t), mixed=_sent(mixed), **options)
    assert_close(receive(losses), expected, FLOAT32, loss_bound)
    factors = arrays(rng, count, np.float32)
    dx = device.binary_cross_entropy_backward(
        send(factors), send(x, misaligned), send(t), factor=send(np.float32(0.5)), mixed=_sent(mixed), **options
    )
    by_row = exact(factors)[:, None] / 2
    assert_close(receive(dx), gradient * by_row, dtype, gradient_bound * np.abs(by_row))
    assert not receive(dx)[t == ignore_label].any()


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("repeated", [1, 200])
def test_logits_of_any_size(device, dtype, repeated):
    """Nothing overflows on the way, with a few threads for a row or with a block."""
    largest = 65504 if dtype == FLOAT16 else 1e38
    x = np.repeat(np.array([[largest, -largest, 0], [-largest] * 3, [0, -np.inf, 0]], dtype), repeated, axis=1)
    t = np.zeros(3, np.int32)
    losses, log_z = device.softmax_cross_entropy(send(x), send(t))
    logs = np.log([repeated, 3 * repeated, 2 * repeated])
    np.testing.assert_allclose(receive(losses), logs, rtol=1e-6)
    np.testing.assert_allclose(receive(log_z), exact(x).max(1) + logs, rtol=1e-6)
    dx = receive(device.softmax_cross_entropy_backward(send(np.float32(1)), send(x), send(t), log_z))
    assert np.isfinite(dx.astype(np.float32)).all()
    if repeated == 1:
        assert dx[[0, 2]].tolist() == [[0, 0, 0], [-0.5, 0, 0.5]]


def test_rows_that_do_not_count_may_hold_anything(device):
    x = send(np.array([[np.nan, 0], [np.inf, np.inf], [0, 0]], np.float16))
    t = send(np.array([-1, -1, 1], np.int32))
    losses, log_z = device.softmax_cross_entropy(x, t, smoothing=0.1)
    np.testing.assert_allclose(receive(losses), [0, 0, np.log(2)], rtol=1e-6)
    dlosses = send(np.array([np.nan, np.inf, 1], np.float32))
    dx = device.softmax_cross_entropy_backward(dlosses, x, t, log_z, smoothing=0.1)
    assert not receive(dx)[:2].any()


@pytest.mark.parametrize("label", [3, 2**31 - 1, -2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_label_that_is_no_class(device, label, smoothing):
    """Memory that is not there is not read, and the loss shows it."""
    x, t = send(np.zeros((2, 3), np.float16)), send(np.array([label, 1], np.int32))
    class_weight = send(np.ones(3, np.float32))
    losses, _ = device.softmax_cross_entropy(x, t, class_weight=class_weight, smoothing=smoothing)
    assert np.isnan(receive(losses)).tolist() == [True, False]


def test_a_scaled_gradient_that_does_not_fit_is_infinite(device):
    x, t = send(np.zeros((1, 2), np.float16)), send(np.zeros(1, np.int32))
    _, log_z = device.softmax_cross_entropy(x, t)
    dx = device.softmax_cross_entropy_backward(send(np.float32(2**18)), x, t, log_z)
    assert receive(dx).tolist() == [[-np.inf, np.inf]]


@settings(max_examples=tries(40))
@given(
    count=st.sampled_from([0, 1, 63, 64, 65, 5000]),
    divisor=st.sampled_from([None, 8, 0.5]),
    ignore_label=st.sampled_from([-1, 1]),
    seed=seeds,
)
def test_mean_of_counted(device, count, divisor, ignore_label, seed):
    rng = np.random.default_rng(seed)
    t = labels(rng, count, 3, ignore_label)
    losses = np.where(t == ignore_label, np.float32(0), arrays(rng, count, np.float32, mean=1))
    mean, factor = device.mean_of_counted(send(losses), send(t), ignore_label=ignore_label, count=divisor)
    expected = 1 / (divisor or max(np.count_nonzero(t != ignore_label), 1))
    assert_close(receive(factor), np.float64(expected), FLOAT32)
    bound = accumulated(2, abs(exact(losses).sum()) * expected)  # the sum is one of double precision
    assert_close(receive(mean), exact(losses).sum() * expected, FLOAT32, bound)


@settings(max_examples=tries(60))
@given(
    count=st.sampled_from([1, 2, 17, 70]),
    number=classes,
    dtype=storage_dtypes,
    top=st.sampled_from([None, 1, 5]),
    ignore_label=st.sampled_from([None, -1, 0, 255]),
    odd=st.booleans(),
    misaligned=st.booleans(),
    seed=seeds,
)
def test_accuracy(device, count, number, dtype, top, ignore_label, odd, misaligned, seed):
    """The same number as NumPy's, with ties, NaN and labels that are no classes among them."""
    rng = np.random.default_rng(seed)
    x = odd_values(rng, (count, number), dtype) if odd else rng.integers(-3, 4, (count, number)).astype(dtype)
    t = np.where(rng.random(count) < 0.5, exact(x).argmax(1), rng.integers(-2, number + 1, count)).astype(np.int32)
    found = receive(device.accuracy(send(x, misaligned), send(t), top=top, ignore_label=ignore_label))
    expected = PRIMITIVES.accuracy(x, t, top=top, ignore_label=ignore_label)
    assert (found.shape, found.dtype, found.item()) == ((), np.float32, expected.item())


def test_accuracy_of_no_rows(device):
    assert receive(device.accuracy(send(np.zeros((0, 3), np.float16)), send(np.zeros(0, np.int32)))).item() == 0


def test_each_is_one_launch(device):
    x, t = send(np.zeros((40, 1000), np.float16)), send(np.zeros(40, np.int32))
    assert device.launches_of("accuracy", x, t, top=5, ignore_label=-1) == 1
    losses, log_z = device.softmax_cross_entropy(x, t)
    assert device.launches_of("softmax_cross_entropy", x, t, smoothing=0.1) == 1
    assert device.launches_of("softmax_cross_entropy_backward", losses, x, t, log_z, smoothing=0.1) == 1
    assert device.launches_of("mean_of_counted", losses, t) == 1
    mixed = send(np.zeros(40, np.int32)), send(np.ones((), np.float32))
    assert device.launches_of("binary_cross_entropy", x, t, mixed=mixed) == 1
    assert device.launches_of("binary_cross_entropy_backward", losses, x, t, mixed=mixed) == 1


def test_an_empty_batch(device):
    x, t = send(np.zeros((0, 3), np.float16)), send(np.zeros(0, np.int32))
    losses, log_z = device.softmax_cross_entropy(x, t)
    assert losses.shape == log_z.shape == (0,)
    assert device.softmax_cross_entropy_backward(send(np.float32(1)), x, t, log_z).shape == (0, 3)
