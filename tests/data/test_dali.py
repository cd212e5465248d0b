"""mixprec.data.loaders.dali and .batch: what the batches hold, their order, and that a snapshot goes on bit for bit."""

import copy
import dataclasses
import functools
import gc
import itertools
import pickle
import subprocess
import sys

import chainer
import numpy as np
import pytest
from chainer import serializers
from PIL import Image

from mixprec.data.data_error import DataError
from mixprec.data.loaders.batch import to_nchw, to_padded_nchw
from mixprec.data.loaders.epochs import Epochs, Stages
from mixprec.data.loaders.staged import StagedIterator
from mixprec.data.sources.folders import ImageFiles, scan_folders
from tests.cases import first
from tests.data.loader_settings import dali_iterator, objects

MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}
COUNT = 21


@pytest.fixture
def make():
    return dali_iterator


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """21 images of random noise, JPEG and PNG, RGB and gray, upright and wide, in three classes."""
    root = tmp_path_factory.mktemp("noise")
    rng = np.random.default_rng(0)
    for index in range(COUNT):
        folder = root / str(index % 3)
        folder.mkdir(exist_ok=True)
        height, width = (40, 48) if index % 2 else (44, 40)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).convert("L" if index % 5 == 0 else "RGB")
        image.save(folder / f"{index:02}.{'png' if index % 4 else 'jpg'}", quality=90)
    return fake_scan(root)


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """21 images of one gray level each, 10 * index: every crop of an image tells which one it is."""
    root = tmp_path_factory.mktemp("flat")
    for index in range(COUNT):
        folder = root / str(index // 7)
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (24, 20), (10 * index,) * 3).save(folder / f"{index:02}.png")
    return fake_scan(root)


def fake_scan(root):
    """scan_folders without its cache, which would land in the user's home from a module-wide fixture."""
    files = tuple(sorted(str(path.relative_to(root)) for path in root.glob("*/*")))
    labels = np.array([int(file.split("/")[0]) for file in files], np.int32)
    return ImageFiles(str(root), tuple(sorted({file.split("/")[0] for file in files})), files, labels)


def pillow_pixels(images, size, resize=None):
    """Centre crops by Pillow, float64 (N, size, size, 3), 0..255."""
    crops = []
    for path in images.paths():
        image = Image.open(path).convert("RGB")
        if resize is not None:
            scale = resize / min(image.size)
            image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BILINEAR)
        left, top = (image.width - size) // 2, (image.height - size) // 2
        crops.append(np.asarray(image.crop((left, top, left + size, top + size)), np.float64))
    return np.stack(crops)


def one_pass(iterator):
    batches = list(iterator)
    return np.concatenate([x for x, _ in batches]), np.concatenate([t for _, t in batches])


def take(iterator, count):
    """The next batches as copies, with all that an iterator tells about its position after each."""
    found = []
    for _ in range(count):
        x, t = next(iterator)
        found.append((x.copy(), t.copy(), iterator.epoch, iterator.epoch_detail, iterator.is_new_epoch))
        found[-1] += (iterator.previous_epoch_detail,)
    return found


def assert_same(one, other):
    assert len(one) == len(other)
    for (x, t, *position), (other_x, other_t, *other_position) in zip(one, other, strict=True):
        assert x.dtype == other_x.dtype
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(t, other_t)
        assert position == other_position


def levels(batch):
    """Indices of the flat images in a batch of unnormalized pixels."""
    return (batch[0][:, 0, 0, 0] / 10).round().astype(int).tolist()


def test_validation_is_the_centre_crop_normalized(make, noise):
    """Against Pillow and float64: (p - m) / s in FP32 has an error of a few units of the last place of its terms."""
    x, t = one_pass(make(noise, train=False, size=32, dtype="float32"))
    pixels = pillow_pixels(noise, 32)
    expected = (pixels - MEAN) / STD
    bound = 2 * np.finfo(np.float32).eps * (pixels + MEAN) / STD
    assert x.dtype == np.float32
    assert x.shape == (COUNT, 32, 32, 3)
    assert np.all(np.abs(x - expected) <= bound)
    assert t.dtype == np.int32
    np.testing.assert_array_equal(t, noise.labels)


@pytest.mark.parametrize("train", [True, False])
def test_float16_is_float32_rounded_once(make, noise, train):
    wide = take(make(noise, train=train, size=32, flip=train, dtype="float32"), 6)
    half = take(make(noise, train=train, size=32, flip=train, dtype="float16"), 6)
    assert_same([(x.astype(np.float16), *rest) for x, *rest in wide], half)


def test_validation_resizes_the_shorter_side_first(make, noise):
    """Pillow's antialiased bilinear filter is the same; it rounds to 8 bits between and after its two passes."""
    x, _ = one_pass(make(noise, train=False, size=16, resize=20, **PLAIN))
    assert np.abs(x - pillow_pixels(noise, 16, resize=20)).max() <= 2


def test_validation_covers_every_image_once_in_order_and_again_after_reset(make, flat):
    iterator = make(flat, train=False, **PLAIN)
    assert not iterator.repeat
    for _ in range(2):
        batches = [levels(batch) for batch in iterator]
        assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 1]
        assert list(itertools.chain(*batches)) == list(range(COUNT))
        with pytest.raises(StopIteration):
            next(iterator)
        assert (iterator.epoch, iterator.is_new_epoch, iterator.epoch_detail) == (1, True, 1.0)
        iterator.reset()


def test_training_delivers_every_image_once_an_epoch_in_a_new_order(make, flat):
    iterator = make(flat, flip=True, **PLAIN)
    assert iterator.repeat
    orders = []
    for epoch in range(3):
        batches = []
        for step in range(6):
            batches.append(levels(next(iterator)))
            assert iterator.is_new_epoch == (step == 5)
        assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 1]
        orders.append(list(itertools.chain(*batches)))
        assert sorted(orders[-1]) == list(range(COUNT))
        assert iterator.epoch == epoch + 1
        assert iterator.epoch_detail == epoch + 1
        assert iterator.previous_epoch_detail == epoch + 20 / COUNT
    assert list(range(COUNT)) not in orders
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_random_crops_stay_inside_the_area_range(make, tmp_path):
    """A horizontal ramp: the spread of a crop's values tells its width. Crops of a quarter of a square image with
    aspect 1 are half as wide."""
    ramp = np.broadcast_to(np.arange(0, 256, 4, dtype=np.uint8)[None, :, None], (64, 64, 3))
    (tmp_path / "0").mkdir()
    Image.fromarray(np.ascontiguousarray(ramp)).save(tmp_path / "0" / "0.png")
    images = fake_scan(tmp_path)
    iterator = make(images, 1, size=32, crop_area=(0.25, 0.25), aspect=(1, 1), **PLAIN)
    crops = np.stack([next(iterator)[0][0] for _ in range(20)])
    np.testing.assert_allclose(np.ptp(crops[..., 0], axis=2), 4 * 31, atol=4)
    assert len({crop.tobytes() for crop in crops}) > 10


def test_random_crops_are_resized_with_antialiasing(make, tmp_path):
    """The whole image as the crop, at a third of its size, against Pillow's antialiased filter as above.

    Not at the border, where DALI repeats the last pixel and Pillow lets it out.
    """
    (tmp_path / "0").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0" / "0.png")
    x, _ = next(make(fake_scan(tmp_path), 1, size=16, crop_area=(1, 1), aspect=(1, 1), **PLAIN))
    expected = np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR), np.float32)
    assert np.abs(x[0] - expected)[1:-1, 1:-1].max() <= 2


@pytest.mark.parametrize("flip", [True, False])
def test_flip_mirrors_some_images_and_no_flip_none(make, tmp_path, flip):
    """The whole image as the crop, so that only the mirroring is random."""
    (tmp_path / "0").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0" / "0.png")
    iterator = make(fake_scan(tmp_path), 1, size=16, crop_area=(1, 1), aspect=(1, 1), flip=flip, **PLAIN)
    crops = [next(iterator)[0][0] for _ in range(30)]
    straight = sum(np.array_equal(crop, pixels) for crop in crops)
    mirrored = sum(np.array_equal(crop, pixels[:, ::-1]) for crop in crops)
    assert straight + mirrored == 30
    assert (mirrored > 0) == flip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 0])
def test_same_seed_gives_the_same_batches_whatever_the_threads(make, noise, seed):
    """And however many are made ahead. Seed 0 too: DALI takes a negative seed, not 0, as 'choose one'."""
    one = take(make(noise, flip=True, seed=seed, threads=1), 15)
    assert_same(one, take(make(noise, flip=True, seed=seed, threads=3, prefetch=4), 15))


def test_training_reset_repeats_the_beginning(make, noise):
    iterator = make(noise, flip=True)
    first = take(iterator, 8)
    iterator.reset()
    assert_same(first, take(iterator, 8))


@pytest.mark.parametrize(
    ("train", "delivered"), first(3, [(True, 5), (False, 3), (True, 0), (True, 3), (True, 6), (True, 8), (False, 6)])
)
def test_loading_a_snapshot_goes_on_bit_for_bit(make, noise, tmp_path, train, delivered):
    """At the very start, in the middle of an epoch, before its last batch, at its end, in the second and third."""
    settings = {"train": train, "flip": train, "dtype": "float16"}
    iterator = make(noise, **settings)
    take(iterator, delivered)
    serializers.save_npz(str(tmp_path / "snapshot"), iterator)
    fresh = make(noise, **{**settings, "threads": 1})
    serializers.load_npz(str(tmp_path / "snapshot"), fresh)
    for name in ("epoch", "epoch_detail", "previous_epoch_detail", "is_new_epoch"):
        assert getattr(fresh, name) == getattr(iterator, name), name
    following = 14 if train else 6 - delivered
    assert_same(take(iterator, following), take(fresh, following))
    if not train:
        assert list(fresh) == []


def test_loading_into_a_running_iterator_rewinds_it(make, noise):
    iterator = make(noise)
    take(iterator, 2)
    saved = serializers.npz.serialize(iterator)
    following = take(iterator, 9)
    serializers.NpzDeserializer(saved).load(iterator)
    assert_same(following, take(iterator, 9))
    iterator.reset()
    assert_same(take(make(noise), 3), take(iterator, 3))


EPOCHS = 3


def two_shards(make, images, batch_size=4, **settings):
    return [make(images, batch_size, shard=shard, num_shards=2, **settings) for shard in range(2)]


def epochs_of(iterator, count=EPOCHS):
    """A list for each epoch of (images that count, labels) of its batches; watches where epochs end."""
    found = []
    for epoch in range(count):
        found.append([])
        while iterator.epoch == epoch:
            before = iterator.epoch_detail
            x, t = next(iterator)
            found[-1].append((levels((x[t >= 0], t)), t))
            assert len(x) == len(t)
            assert iterator.previous_epoch_detail == before
            assert iterator.is_new_epoch == (iterator.epoch > epoch)
            assert before < iterator.epoch_detail <= epoch + 1
        assert iterator.epoch_detail == epoch + 1
    return found


def images_of(batches):
    return [image for images, _ in batches for image in images]


BATCHES = [
    (4, "partial", ([4, 4, 2], [4, 4, 3])),
    (5, "partial", ([5, 5, 0], [5, 5, 1])),
    (5, "drop", ([5, 5], [5, 5])),
    (5, "pad", ([5, 5, 0], [5, 5, 1])),
]


@pytest.mark.parametrize(("batch_size", "last_batch", "counts"), BATCHES)
def test_two_shards_over_three_epochs(make, flat, batch_size, last_batch, counts):
    shards = [
        epochs_of(iterator)
        for iterator in two_shards(make, flat, batch_size, last_batch=last_batch, flip=True, **PLAIN)
    ]
    orders = []
    for epoch in range(EPOCHS):
        for shard, expected in zip(shards, counts, strict=True):
            assert [len(images) for images, _ in shard[epoch]] == expected
            for images, labels in shard[epoch]:
                np.testing.assert_array_equal(labels[: len(images)], flat.labels[images])
                padding = labels[len(images) :]
                assert (padding == -1).all()
                assert len(padding) == (batch_size - len(images) if last_batch == "pad" else not len(images))
        images = images_of(shards[0][epoch]) + images_of(shards[1][epoch])
        assert len(set(images)) == len(images) == sum(map(sum, counts))
        orders.append(images)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    # Which images a shard has changes, too.
    assert len({frozenset(images_of(batches)) for batches in shards[0]}) > 1


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad"])
def test_shards_of_validation_are_parts_of_the_whole_in_order(make, flat, last_batch):
    for shard, places in zip(
        two_shards(make, flat, train=False, last_batch=last_batch, **PLAIN),
        ([*range(4), *range(8, 12), 16, 17], [*range(4, 8), *range(12, 16), 18, 19, 20]),
        strict=True,
    ):
        for _ in range(3):
            images = images_of(epochs_of(shard, 1)[0])
            assert images == places[: 8 if last_batch == "drop" else None]
            with pytest.raises(StopIteration):
                next(shard)
            shard.reset()


@pytest.mark.parametrize(("last_batch", "shard"), [("partial", 0), ("drop", 1), ("pad", 1)])
def test_a_shard_goes_on_after_any_batch(make, noise, last_batch, shard):
    """More than two epochs, with batches made ahead that nobody has seen when the snapshot was taken."""
    settings = {"flip": True, "last_batch": last_batch, "shard": shard, "num_shards": 2}
    iterator = make(noise, 5, prefetch=3, **settings)
    snapshots, batches = [], []
    for _ in range(11):
        snapshots.append(serializers.npz.serialize(iterator))
        batches += take(iterator, 1)
    for number in range(8):
        fresh = make(noise, 5, **settings)
        serializers.NpzDeserializer(snapshots[number]).load(fresh)
        assert_same(batches[number : number + 3], take(fresh, 3))


def test_crops_and_flips_differ_between_shards(make, tmp_path):
    """The same picture everywhere: only what is random in it can differ."""
    (tmp_path / "0").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for index in range(8):
        Image.fromarray(pixels).save(tmp_path / "0" / f"{index}.png")
    first, second = two_shards(make, fake_scan(tmp_path), 4, flip=True)
    assert not np.array_equal(next(first)[0], next(second)[0])


@pytest.mark.parametrize(("train", "dtype"), [(True, "float16"), (False, "float32")])
def test_a_fourth_channel_is_zero_and_changes_nothing_else(make, noise, train, dtype):
    plain, padded = (make(noise, train=train, dtype=dtype, pad_channels=pad, last_batch="pad") for pad in (False, True))
    for _ in range(6):
        x, t = next(plain)
        padded_x, padded_t = next(padded)
        count = (t >= 0).sum()  # nothing is said about the pixels of padding
        np.testing.assert_array_equal(padded_x[:count], x[:count])
        np.testing.assert_array_equal(padded_t, t)
        assert padded_x.shape == (4, 16, 16, 3)
        whole, _ = to_padded_nchw((padded_x, padded_t))
        assert whole.shape == (4, 4, 16, 16)
        assert whole.transpose(0, 2, 3, 1).flags.c_contiguous
        assert np.shares_memory(whole, padded_x)
        np.testing.assert_array_equal(whole[:, :3].transpose(0, 2, 3, 1), padded_x)
        assert not whole[:, 3].any()


def test_float32_snapshot_with_a_fourth_channel_goes_on_in_float16_without(make, noise):
    wide, half = make(noise, dtype="float32", pad_channels=True), make(noise, dtype="float16")
    take(wide, 8)
    serializers.NpzDeserializer(serializers.npz.serialize(wide)).load(half)
    assert_same([(x.astype(np.float16), *rest) for x, *rest in take(wide, 7)], take(half, 7))


OTHER_SETTINGS = [
    ({"batch_size": 5}, "batch_size is 5 here, 4 in the snapshot"),
    ({"crop_area": (0.5, 1)}, "crop_area is [0.5, 1.0] here, [0.08, 1.0] in the snapshot"),
    ({"num_shards": 2, "shard": 1}, "shard is 1 here, 0 in the snapshot"),
    ({"mean": (0, 0, 0), "seed": 3}, "seed is 3 here, 1 in the snapshot"),
    ({"train": False}, "train is False here, True in the snapshot"),
]


@pytest.mark.parametrize(("changed", "named"), OTHER_SETTINGS)
def test_snapshot_with_other_settings_is_refused_and_named(make, noise, changed, named):
    saved = serializers.npz.serialize(make(noise))
    with pytest.raises(DataError) as caught:
        serializers.NpzDeserializer(saved).load(make(noise, **changed))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_snapshot_of_other_files_is_refused_and_named(make, noise, flat):
    saved = serializers.npz.serialize(make(noise))
    with pytest.raises(DataError, match=r"files and labels \(SHA-256\) is "):
        serializers.NpzDeserializer(saved).load(make(flat))


def test_snapshot_of_other_images_under_the_same_names_is_refused_and_named(make, noise):
    saved = serializers.npz.serialize(make(dataclasses.replace(noise, sizes=np.arange(len(noise)))))
    here = make(dataclasses.replace(noise, sizes=np.arange(len(noise)) + 1))
    with pytest.raises(DataError, match=r"settings: sizes of the images \(SHA-256\) is \w+ here, \w+ in the snapshot$"):
        serializers.NpzDeserializer(saved).load(here)


def test_snapshot_without_the_iterator_leaves_it_alone_when_not_strict(make, noise):
    iterator = make(noise)
    first = take(iterator, 2)
    serializers.NpzDeserializer({}, strict=False).load(iterator)
    assert iterator.epoch_detail == first[-1][3]


def test_batches_are_contiguous_and_stay_valid_as_long_as_they_are_kept(make, noise):
    """They are views of DALI's buffers, which must not be written again."""
    iterator = make(noise)
    kept = [next(iterator) for _ in range(12)]
    copies = [(x.copy(), t.copy()) for x, t in kept]
    take(iterator, 12)
    iterator.reset()
    take(iterator, 3)
    iterator.finalize()
    del iterator
    gc.collect()
    for (x, t), (x_then, t_then) in zip(kept, copies, strict=True):
        assert x.flags.c_contiguous
        assert t.flags.c_contiguous
        np.testing.assert_array_equal(x, x_then)
        np.testing.assert_array_equal(t, t_then)


@pytest.mark.parametrize("copied", first(1, [lambda iterator: pickle.loads(pickle.dumps(iterator)), copy.copy]))
def test_a_copy_of_a_running_iterator_goes_on_by_itself(make, noise, copied):
    expected = take(make(noise), 12)
    iterator = make(noise)
    found = take(iterator, 4)
    other = copied(iterator)
    assert_same(expected, found + take(iterator, 8))
    assert_same(expected[4:], take(other, 8))
    other.finalize()


@pytest.mark.parametrize(("train", "when"), [(True, "run"), (False, "made")])
def test_ctrl_c_loses_no_batch(noise, monkeypatch, train, when):
    """Raised when DALI has run, or when the batch is made, but is not out yet."""
    dali = pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")

    def interrupt(*_):
        raise KeyboardInterrupt

    expected = take(dali_iterator(noise, train=train, threads=1), 6)
    iterator = dali_iterator(noise, train=train, threads=1)
    found = take(iterator, 2)
    with monkeypatch.context() as patch:
        patch.setattr(*((dali.Pipeline, "checkpoint") if when == "run" else (Epochs, "count")), interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    assert_same(expected, found + take(iterator, 4))


def test_finalized_iterator_keeps_its_position(make, noise):
    iterator, other = make(noise), make(noise)
    take(iterator, 4)
    take(other, 4)
    iterator.finalize()
    iterator.finalize()
    assert_same(take(other, 5), take(iterator, 5))


IMPOSSIBLE = [
    ({"batch_size": 0}, "batch_size 0: must be 1 to 21"),
    ({"batch_size": 22}, "batch_size 22: must be 1 to 21"),
    ({"size": 0}, "size 0: "),
    ({"resize": 20}, "resize 20: only for validation"),
    ({"train": False, "resize": 8}, "resize 8: must be at least size, 16"),
    ({"train": False, "flip": True}, "flip: only for training"),
    ({"crop_area": (0, 1)}, "crop_area (0.0, 1.0): "),
    ({"crop_area": (0.5, 0.4)}, "crop_area (0.5, 0.4): "),
    ({"aspect": (2, 1)}, "aspect (2.0, 1.0): "),
    ({"mean": (1, 2)}, "mean (1.0, 2.0): "),
    ({"std": (1, 0, 1)}, "std (1.0, 0.0, 1.0): "),
    ({"dtype": "float64"}, "dtype 'float64': "),
    ({"seed": -1}, "seed -1: "),
    ({"seed": 2**32}, "seed 4294967296: "),
    ({"prefetch": 0}, "prefetch 0: "),
    ({"shuffle_window": 0}, "shuffle_window 0: "),
    ({"last_batch": "repeat"}, "last_batch 'repeat': must be one of partial, drop, pad"),
    ({"num_shards": 0}, "num_shards 0: "),
    ({"shard": 2, "num_shards": 2}, "shard 2: must be 0 to num_shards - 1, 1"),
    ({"shard": -1}, "shard -1: "),
    ({"batch_size": 11, "num_shards": 2}, "batch_size 11: must be 1 to 10, the number of images in the smallest"),
    ({"threads": 0}, "threads 0: "),
]


@pytest.mark.parametrize(("arguments", "message"), IMPOSSIBLE)
def test_impossible_argument_is_named(make, flat, arguments, message):
    with pytest.raises(DataError) as caught:
        make(flat, **arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("train", "broken"), [(True, "garbage"), (False, "garbage"), (True, None)])
def test_image_broken_or_removed_after_the_scan_is_fatal_and_named(make, tmp_path, train, broken):
    """DALI names neither the file nor the batch when bytes are not an image."""
    (tmp_path / "0").mkdir()
    for index in range(9):
        Image.new("RGB", (20, 20)).save(tmp_path / "0" / f"{index}.png")
    images = scan_folders(tmp_path)
    (tmp_path / "0" / "5.png").unlink()
    if broken:
        (tmp_path / "0" / "5.png").write_text(broken)
    iterator = make(images, 2, train=train)
    with pytest.raises(DataError) as caught:
        take(iterator, 5)
    assert str(caught.value).startswith(f"{tmp_path}/0/5.png: {'not an image' if broken else 'No such file'}")
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError):  # it must not go on behind the broken image
        next(iterator)


def test_images_of_the_batch_are_named_when_none_is_broken(make, flat):
    """20 x 24 images are too small for the crop: DALI says why, not which."""
    with pytest.raises(DataError) as caught:
        next(make(flat, 2, train=False, size=64))
    assert str(caught.value).endswith(f"one of the images {flat.paths()[0]}, {flat.paths()[1]}")


def test_without_dali_the_error_says_what_to_install(monkeypatch, flat):
    from mixprec.data.loaders.dali import DaliIterator

    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(DataError, match=r'pip install -e "\.\[dali\]"') as caught:
        DaliIterator(flat, *objects())
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_importing_the_modules_does_not_import_dali():
    script = "import sys, mixprec.data.loaders.dali, mixprec.data.loaders.batch; sys.exit('nvidia.dali' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_to_nchw_is_a_view_and_can_be_pickled():
    x, t = np.zeros((2, 4, 5, 3), np.float16), np.arange(2, dtype=np.int32)
    for converter in (to_nchw, pickle.loads(pickle.dumps(to_nchw))):
        for device in (None, -1, chainer.get_device("@numpy")):
            converted_x, converted_t = converter((x, t), device)
            assert converted_x.shape == (2, 3, 4, 5)
            assert converted_x.dtype == np.float16
            assert np.shares_memory(converted_x, x)
            assert converted_t is t


class Counting(chainer.Chain):
    """Reports nothing useful; counts the images it has seen."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.w = chainer.Parameter(np.zeros((), np.float32))
        self.seen = []

    def forward(self, x, t):
        assert x.shape[1:] == (3, 16, 16)
        self.seen += t.tolist()
        return chainer.functions.sum(x[:, 0, 0, 0] * 0) + self.w


def test_chainers_updater_and_evaluator_see_every_image(make, noise):
    model = Counting()
    optimizer = chainer.optimizers.SGD().setup(model)
    updater = chainer.training.updaters.StandardUpdater(make(noise), optimizer, converter=to_nchw)
    for _ in range(12):
        updater.update()
    assert updater.epoch == 2
    assert sorted(model.seen) == sorted(2 * noise.labels.tolist())
    evaluator = chainer.training.extensions.Evaluator(make(noise, train=False), model, converter=to_nchw)
    for _ in range(2):
        model.seen = []
        evaluator()
        assert model.seen == noise.labels.tolist()


# Stages


def _staged(make, images, last_batch="partial", dtype="float32", **settings):
    """Two epochs of 16 pixels in batches of 4, then one of 24 in batches of 8, then 20 pixels in batches of 5."""
    epochs, made = [], []
    for start, size, batch_size in ((0, 16, 4), (2, 24, 8), (3, 20, 5)):
        before = (start, epochs[-1].begin(start)) if epochs else (0, 0)
        own = {"epochs_before": before[0], "batches_before": before[1], "last_batch": last_batch}
        epochs.append(Epochs(images=len(images), batch_size=batch_size, **own))
        own = {"size": size, "before": before, "last_batch": last_batch, "dtype": dtype, **settings}
        made.append(functools.partial(make, images, batch_size, **own))
    return StagedIterator(Stages(tuple(epochs)), made)


@pytest.mark.parametrize("last_batch", first(1, ["partial", "drop", "pad"]))
def test_stages_have_images_of_their_sizes_each_once_an_epoch(make, flat, last_batch):
    iterator = _staged(make, flat, last_batch, **PLAIN)
    orders = []
    for epoch, (size, batch_size) in enumerate([(16, 4), (16, 4), (24, 8), (20, 5), (20, 5)]):
        seen = []
        while True:
            x, t = next(iterator)
            assert x.shape[1:] == (size, size, 3)
            seen += np.round(x[t >= 0].mean((1, 2, 3)) / 10).astype(int).tolist()
            if iterator.is_new_epoch:
                break
        assert (iterator.epoch, iterator.epoch_detail) == (epoch + 1, epoch + 1)
        assert iterator.stage == (0, 0, 1, 2, 2)[epoch]
        wanted = COUNT if last_batch != "drop" else COUNT // batch_size * batch_size
        assert len(seen) == len(set(seen)) == wanted
        orders.append(seen)
    assert len(set(map(tuple, orders))) == 5  # a new order in each epoch, also where a stage begins
    iterator.finalize()


@pytest.mark.slow
@pytest.mark.parametrize("delivered", [14, 12])
def test_a_snapshot_of_any_stage_goes_on_bit_for_bit(make, noise, tmp_path, delivered):
    """6 batches an epoch for 2 epochs, then 3, then 5: stages begin after 12 and 15 batches."""
    whole = _staged(make, noise)
    expected = take(whole, 23)
    whole.finalize()
    before = _staged(make, noise)
    take(before, delivered)
    serializers.save_npz(tmp_path / "snapshot.npz", before)
    before.finalize()
    after = _staged(make, noise)
    serializers.load_npz(tmp_path / "snapshot.npz", after)
    assert_same(take(after, 23 - delivered), expected[delivered:])
    after.reset()
    assert_same(take(after, 2), expected[:2])
    after.finalize()
