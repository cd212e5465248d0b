"""mixprec.data.loaders.synthetic: the same arrays on the device, and epochs as loaders of images have them."""

import itertools

import chainer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixprec.data.loaders.batch import to_nchw
from mixprec.data.loaders.epochs import Epochs
from mixprec.data.loaders.synthetic import SyntheticIterator
from tests.data.loader_settings import objects
from tests.data.refusal import refused


def make(images=20, batch_size=4, **settings):
    settings = {"size": 6, "classes": 10, "dtype": "float16", "device": "@numpy", **settings}
    device = {name: settings.pop(name) for name in ("classes", "device")}
    return SyntheticIterator(images, *objects(batch_size, **settings), **device)


@pytest.mark.parametrize(("dtype", "pad_channels"), [("float16", True), ("float32", False)])
def test_a_batch_is_normal_and_in_the_layout_of_the_loaders(dtype, pad_channels):
    x, t = next(make(100, 50, size=32, dtype=dtype, pad_channels=pad_channels))
    assert x.shape == (50, 32, 32, 3)
    assert x.dtype == dtype
    memory = x.base if pad_channels else x
    assert memory.shape[-1] == (4 if pad_channels else 3)
    assert memory.flags.c_contiguous
    if pad_channels:
        assert not memory[..., 3].any()
    # The mean of n standard normal numbers has a standard deviation of 1 / sqrt(n), their variance one of sqrt(2 / n).
    values = x.astype(np.float64)
    assert abs(values.mean()) < 6 / values.size**0.5
    assert abs(values.var() - 1) < 6 * (2 / values.size) ** 0.5
    assert t.dtype == np.int32
    assert set(t.tolist()) <= set(range(10))
    assert len(set(t.tolist())) > 5


def test_a_seed_gives_the_same_numbers_and_another_one_others():
    (x, t), (x_again, t_again), (x_other, t_other) = (next(make(seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(x, x_again)
    np.testing.assert_array_equal(t, t_again)
    assert not np.array_equal(x, x_other)
    assert not np.array_equal(t, t_other)


class Device(type(chainer.get_device("@numpy"))):
    """Counts what is sent there."""

    def __init__(self):
        super().__init__()
        self.sent = 0

    def send(self, arrays):
        self.sent += 1
        return arrays


def test_nothing_is_sent_to_the_device_after_the_start():
    device = Device()
    iterator = make(18, device=device, last_batch="pad")
    sent = device.sent
    assert sent > 0
    pointers = {(x.ctypes.data, t.ctypes.data) for x, t in itertools.islice(iterator, 9)}
    assert device.sent == sent
    assert len({x for x, _ in pointers}) == 1
    assert len({t for _, t in pointers}) == 2  # that with padding is another one


@given(st.integers(1, 30), st.integers(1, 8), st.sampled_from(["partial", "drop", "pad"]), st.integers(1, 3), st.data())
def test_epochs_are_those_of_the_loaders(smallest, batch_size, last_batch, num_shards, data):
    batch_size = min(batch_size, smallest)
    images = smallest * num_shards + data.draw(st.integers(0, num_shards - 1))
    shard = data.draw(st.integers(0, num_shards - 1))
    iterator = make(images, batch_size, size=1, last_batch=last_batch, shard=shard, num_shards=num_shards)
    epochs = Epochs(images=images, batch_size=batch_size, last_batch=last_batch, shard=shard, num_shards=num_shards)
    assert iterator.repeat
    assert (iterator.epoch, iterator.epoch_detail, iterator.is_new_epoch) == (0, 0, False)
    assert iterator.previous_epoch_detail is None
    for number in range(2 * epochs.batches + 1):
        x, t = next(iterator)
        # A shard without an image in the last batch gets one that does not count.
        assert len(x) == len(t) == (batch_size if last_batch == "pad" else max(1, epochs.count(number)))
        np.testing.assert_array_equal(t == -1, np.arange(len(t)) >= epochs.count(number))
        assert iterator.epoch == epochs.epoch(number + 1)
        assert iterator.epoch_detail == epochs.detail(number + 1)
        assert iterator.previous_epoch_detail == epochs.detail(number)
        assert iterator.is_new_epoch == epochs.is_new(number + 1)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"batch_size": 21}, "batch_size 21: must be 1 to 20"), ({"classes": 0}, "classes 0: ")]
)
def test_impossible_argument_is_named(arguments, message):
    assert refused(make, **arguments).startswith(message)


@pytest.mark.gpu
def test_batches_lie_on_the_gpu():
    device = chainer.get_device("@cupy:0")
    device.use()
    (x, t), (x_host, t_host) = next(make(device=device, pad_channels=True)), next(make(pad_channels=True))
    assert isinstance(x, device.xp.ndarray)
    assert isinstance(t, device.xp.ndarray)
    np.testing.assert_array_equal(x.get(), x_host)
    np.testing.assert_array_equal(t.get(), t_host)
    x_nchw, t_again = to_nchw((x, t), device)
    assert x_nchw.data.ptr == x.data.ptr
    assert t_again is t
