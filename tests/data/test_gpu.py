"""DALI on a GPU beside DALI on the CPU: the same order and labels, pixels as close as decoders are; nothing waits."""

import functools

import numpy as np
import pytest
from chainer import serializers
from PIL import Image

from mixprec.data.loaders.batch import to_padded_nchw
from tests.data.loader_settings import dali_iterator
from tests.data.test_dali import COUNT, MEAN, PLAIN, STD, assert_same, fake_scan, flat  # noqa: F401 (fixtures)

pytestmark = pytest.mark.gpu

SIZE = 32


@pytest.fixture
def make():
    """On the first GPU unless a test says otherwise."""
    return functools.partial(dali_iterator, size=SIZE, device_id=0)


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    """12 pictures of smooth colour, as PNG and as JPEG, in two folders."""
    roots = {kind: tmp_path_factory.mktemp(kind) for kind in ("png", "jpg")}
    rng = np.random.default_rng(0)
    for index in range(12):
        picture = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)).resize(
            (80 + index, 64), Image.Resampling.BICUBIC
        )
        for kind, root in roots.items():
            (root / "0").mkdir(exist_ok=True)
            picture.save(root / "0" / f"{index:02}.{kind}", quality=95)
    return {kind: fake_scan(root) for kind, root in roots.items()}


def on_host(batches):
    return [(x.get(), t.get()) for x, t in batches]


def batches_of(iterator, count):
    """The next batches on the host, with the position after each."""
    found = []
    for _ in range(count):
        x, t = next(iterator)
        found.append((x.get() if hasattr(x, "get") else x.copy(), t.get() if hasattr(t, "get") else t.copy()))
        found[-1] += (iterator.epoch_detail, iterator.is_new_epoch, iterator.previous_epoch_detail)
    return found


def differences(one, other):
    """Of pixels, in units of 1/255 of the range; all else is the same."""
    found = []
    for (x, t, *position), (other_x, other_t, *other_position) in zip(one, other, strict=True):
        assert x.shape == other_x.shape
        np.testing.assert_array_equal(t, other_t)
        assert position == other_position
        found.append(np.abs(x.astype(np.float64) - other_x.astype(np.float64)).ravel())
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("policy", "repeats"), [({"augment": "rand", "augment_deviation": 3.0}, 2), ({"augment": "trivial"}, 1)]
)
def test_augmentation_is_that_of_the_cpu(make, smooth, policy, repeats):
    """The same operations and rectangles. After two operations levels may be two apart, and a few pixels elsewhere."""
    settings = {"crop_area": (1, 1), "aspect": (1, 1), "erase": 0.5, "repeats": repeats, **policy}
    device = batches_of(make(smooth["png"], **settings), 9)
    host = batches_of(make(smooth["png"], device_id=None, **settings), 9)
    assert np.mean(differences(device, host) * max(STD) > 3) < 0.01
    for (x, *_), (other_x, *_) in zip(device, host, strict=True):
        np.testing.assert_array_equal((x == 0).all(3), (other_x == 0).all(3))


def test_crops_of_png_are_those_of_the_cpu(make, smooth):
    """PNGs are decoded by the CPU; (p - m) / s has an error of a few units of the last place of its terms."""
    settings = {"train": False, "size": SIZE}
    device = batches_of(make(smooth["png"], **settings), 3)
    host = batches_of(make(smooth["png"], device_id=None, **settings), 3)
    bound = 4 * np.finfo(np.float32).eps * (255 + max(MEAN)) / min(STD)
    assert differences(device, host).max() <= bound


@pytest.mark.parametrize(("train", "decode"), [(True, "gpu"), (False, "cpu")])
def test_resized_png_are_those_of_the_cpu(make, smooth, train, decode):
    """Both round to 8 bits after the filter, whose sums may differ in their last places: by one level."""
    settings = {"train": train, "flip": train, "last_batch": "pad", "num_shards": 2, **PLAIN}
    if not train:
        settings["resize"] = 40
    device = batches_of(make(smooth["png"], decode=decode, **settings), 2 + 4 * train)
    host = batches_of(make(smooth["png"], device_id=None, **settings), 2 + 4 * train)
    assert differences(device, host).max() <= 1


def test_jpegs_are_close_to_those_of_the_cpu(make, smooth):
    """The inverse DCT differs by a level or two, and colour is enlarged to the size of the picture in another way.

    The latter matters at edges of colour, of which smooth pictures have none.
    """
    settings = {"flip": True, **PLAIN}
    device = batches_of(make(smooth["jpg"], **settings), 9)
    host = batches_of(make(smooth["jpg"], device_id=None, **settings), 9)
    found = differences(device, host)
    assert found.mean() <= 2
    assert found.max() <= 16


@pytest.mark.parametrize("settings", [{}, {"decode": "cpu"}, {"augment": "trivial", "erase": 0.5}])
def test_a_snapshot_goes_on_bit_for_bit(make, smooth, settings):
    iterator = make(smooth["jpg"], 5, flip=True, dtype="float16", **settings)
    batches_of(iterator, 4)
    saved = serializers.npz.serialize(iterator)
    fresh = make(smooth["jpg"], 5, flip=True, dtype="float16", **settings)
    serializers.NpzDeserializer(saved).load(fresh)
    assert_same(batches_of(iterator, 6), batches_of(fresh, 6))


def test_the_host_does_not_wait_for_the_device(make, smooth):
    """Work that was queued before a batch is asked for is still going on when it has been given out."""
    import cupy

    iterator = make(smooth["jpg"], pad_channels=True, last_batch="drop")
    for _ in range(6):  # memory is there, and kernels are loaded
        next(iterator)
    matrix = cupy.ones((4096, 4096), cupy.float32)
    with cupy.cuda.Stream(non_blocking=True):
        matrix @ matrix
        for _ in range(2):
            for _ in range(1000):  # seconds on any GPU
                cupy.matmul(matrix, matrix)
            queued = cupy.cuda.Event(disable_timing=True)
            queued.record()
            x, t = to_padded_nchw(next(iterator))
            assert not queued.done
            assert isinstance(x, cupy.ndarray)
            assert isinstance(t, cupy.ndarray)
            assert x.transpose(0, 2, 3, 1).flags.c_contiguous
            queued.synchronize()


def test_memory_lives_until_queued_work_has_read_it(make, smooth):
    """The host is ahead of a slow device, and drops each batch at once; DALI could write the next ones there."""
    import cupy

    expected = [x for x, *_ in batches_of(make(smooth["png"], pad_channels=True), 24)]
    iterator = make(smooth["png"], pad_channels=True)
    slow = cupy.ones((2048, 2048), cupy.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        copies = []
        for _ in expected:
            x, _ = next(iterator)
            for _ in range(20):
                slow = slow @ slow * 1e-4
            copies.append(x.copy())
            del x
        stream.synchronize()
    for copy, x in zip(copies, expected, strict=True):
        np.testing.assert_array_equal(copy.get(), x)
