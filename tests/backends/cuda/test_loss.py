"""Kernels of losses and of the accuracy, run on the host, beside FP64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.backends.cpu import PRIMITIVES
from tests.backends.primitive_cases import FLOAT32, accumulated, assert_close, exact, labels, seeds, storage_dtypes
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


@pytest.mark.parametrize("label", [3, 2**31 - 1, -2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_label_that_is_no_class(device, label, smoothing):
    """Memory that is not there is not read, and the loss shows it."""
    x, t = send(np.zeros((2, 3), np.float16)), send(np.array([label, 1], np.int32))
    class_weight = send(np.ones(3, np.float32))
    losses, *_ = device.softmax_cross_entropy(x, t, class_weight=class_weight, smoothing=smoothing)
    assert np.isnan(receive(losses)).tolist() == [True, False]


@settings(max_examples=tries(60))
@given(
    count=st.sampled_from([0, 1, 5, 17, 70, 300]),
    number=st.sampled_from([1, 3, 10, 33, 64, 136]),
    loss=st.sampled_from(["softmax_cross_entropy", "binary_cross_entropy"]),
    divisor=st.sampled_from([0, 8, 0.5]),
    ignore_label=st.sampled_from([-1, 0]),
    seed=seeds,
)
def test_the_mean_and_the_accuracy_of_a_loss(device, count, number, loss, divisor, ignore_label, seed):
    """Of all rows, whatever is in others: by the last block. The losses are the same without a mean."""
    rng = np.random.default_rng(seed)
    x, t = rng.integers(-3, 4, (count, number)).astype(np.float16), labels(rng, count, number, ignore_label)
    x[::5] = odd_values(rng, x[::5].shape, x.dtype)
    t[::5] = ignore_label
    launch = getattr(device, loss)
    losses, *_, (mean, factor, share) = launch(send(x), send(t), ignore_label=ignore_label, divisor=divisor)
    alone, *_, nothing = launch(send(x), send(t), ignore_label=ignore_label)
    assert nothing is None
    np.testing.assert_array_equal(receive(losses), receive(alone))
    expected = 1 / (divisor or max(np.count_nonzero(t != ignore_label), 1))
    assert_close(receive(factor), np.float64(expected), FLOAT32)
    total = exact(receive(losses)).sum() * expected
    assert_close(receive(mean), total, FLOAT32, accumulated(2, total))  # the sum is one of double precision
    assert receive(share) == PRIMITIVES.accuracy(x, t, ignore_label=ignore_label)


@settings(max_examples=tries(30))
@given(
    number=classes,
    dtype=storage_dtypes,
    loss=st.sampled_from(["softmax_cross_entropy", "binary_cross_entropy"]),
    seed=seeds,
)
def test_the_accuracy_of_a_loss_of_odd_logits(device, number, dtype, loss, seed):
    rng = np.random.default_rng(seed)
    x, t = odd_values(rng, (70, number), dtype), rng.integers(-2, number + 1, 70).astype(np.int32)
    t[::2] = exact(x[::2]).argmax(1)
    *_, (_, _, share) = getattr(device, loss)(send(x), send(t), divisor=1)
    assert receive(share) == PRIMITIVES.accuracy(x, t, ignore_label=-1)


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
    losses, log_z, _ = device.softmax_cross_entropy(x, t)
    assert device.launches_of("softmax_cross_entropy", x, t, smoothing=0.1, divisor=0) == 1
    assert device.launches_of("softmax_cross_entropy_backward", losses, x, t, log_z, smoothing=0.1) == 1
    mixed = send(np.zeros(40, np.int32)), send(np.ones((), np.float32))
    assert device.launches_of("binary_cross_entropy", x, t, mixed=mixed, divisor=0) == 1
    assert device.launches_of("binary_cross_entropy_backward", losses, x, t, mixed=mixed) == 1


def test_an_empty_batch(device):
    x, t = send(np.zeros((0, 3), np.float16)), send(np.zeros(0, np.int32))
    losses, log_z, _ = device.softmax_cross_entropy(x, t)
    assert losses.shape == log_z.shape == (0,)
    assert device.softmax_cross_entropy_backward(send(np.float32(1)), x, t, log_z).shape == (0, 3)
