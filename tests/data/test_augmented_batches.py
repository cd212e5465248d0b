"""Batches of both loaders with RandAugment, TrivialAugment, random erasing and copies of images."""

import numpy as np
import pytest
from chainer import serializers
from PIL import Image

from mixprec.data.data_error import DataError
from mixprec.data.loaders import erasing, random_policies
from mixprec.data.loaders.operations import EXTRA
from mixprec.data.loaders.order import Order
from tests.cases import first
from tests.data.loader_settings import dali_iterator, pillow_iterator  # noqa: F401 (a fixture)
from tests.data.test_augmentation import spec_of
from tests.data.test_dali import COUNT, MEAN, PLAIN, STD, assert_same, fake_scan, levels, noise, take  # noqa: F401

WHOLE = {"crop_area": (1, 1), "aspect": (1, 1)}
RAND = {"augment": "rand", "augment_deviation": 2.0, "augment_probability": 0.8}
POLICIES = {"rand": RAND, "trivial": {"augment": "trivial"}}
EVERYTHING = {**RAND, "extra_operations": ("invert",), "erase": 0.5, "repeats": 2, "flip": True}


@pytest.fixture
def loaders(pillow_iterator):  # noqa: F811
    """Both iterators; processes end with the test."""
    return lambda kind, *args, **settings: (dali_iterator if kind == "dali" else pillow_iterator)(*args, **settings)


@pytest.fixture(params=["pillow", "dali"])
def make(request, loaders):
    return lambda *args, **settings: loaders(request.param, *args, **settings)


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """Ten times the same picture, 32 x 32: what differs between places of an epoch is augmentation alone."""
    root = tmp_path_factory.mktemp("alike")
    (root / "0").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    for index in range(10):
        Image.fromarray(pixels).save(root / "0" / f"{index}.png")
    return fake_scan(root)


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    """Twenty ramps of their own colours, 32 x 32, in five classes."""
    root = tmp_path_factory.mktemp("smooth")
    y, x = np.mgrid[:32, :32] * 4
    for index in range(20):
        (root / str(index % 5)).mkdir(exist_ok=True)
        ramp = np.stack([x + 6 * index, y + 120 - 5 * index, (x + y) // 2 + 40], 2)
        Image.fromarray(ramp.astype(np.uint8)).save(root / str(index % 5) / f"{index:02}.png")
    return fake_scan(root)


def _expected(images, policy, places, **settings):
    """Pixels of places (epoch, place), by Pillow, without a crop."""
    spec = spec_of(size=32, **POLICIES[policy], **settings)
    picture = Image.open(images.paths()[0])
    return [
        np.asarray(random_policies.pillow(picture, random_policies.draw(spec, *each)), np.float64) for each in places
    ]


@pytest.mark.parametrize(("policy", "last_batch"), first(1, [("rand", "drop"), ("trivial", "partial")]))
def test_each_place_of_an_epoch_has_its_operations(make, alike, policy, last_batch):
    """Over three epochs, of which DALI makes a batch more that is left out. Enhanced twice, levels may be two apart."""
    iterator = make(alike, 4, size=32, last_batch=last_batch, **WHOLE, **PLAIN, **POLICIES[policy])
    a_pass = [(0, 4), (4, 8), (8, 10)] if last_batch == "partial" else [(0, 4), (4, 8)]
    seen = set()
    for epoch in range(3):
        for begin, end in a_pass:
            x, _ = next(iterator)
            expected = _expected(alike, policy, [(epoch, place) for place in range(begin, end)])
            assert len(x) == len(expected)
            for found, wanted in zip(x, expected, strict=True):
                assert np.mean(abs(found - wanted) > 2) < 0.005
                seen.add(found.tobytes())
            if begin == 4:
                iterator.finalize()  # what comes is made anew, from this position on
    assert len(seen) > 15


@pytest.mark.parametrize("policy", first(1, ["rand", "trivial"]))
def test_both_loaders_give_shards_the_same_images(loaders, smooth, policy):
    """Image by image, as their order is the same, too; images that are not resized are cropped in the same way."""
    settings = {**WHOLE, **POLICIES[policy], "size": 32, "num_shards": 2, "shard": 1, "repeats": 2, "erase": 0.5}
    pairs = zip(*(take(loaders(kind, smooth, **settings), 6) for kind in ("pillow", "dali")), strict=True)
    for (x, t, *_), (other_x, other_t, *_) in pairs:
        np.testing.assert_array_equal(t, other_t)
        assert np.mean(abs(x - other_x) * STD > 2.01) < 0.005
        np.testing.assert_array_equal(x == 0, other_x == 0)


@pytest.mark.parametrize(("dtype", "pad_channels"), [("float16", True), ("float32", False)])
def test_a_rectangle_is_zero_after_the_normalization(make, alike, dtype, pad_channels):
    settings = {"size": 32, "dtype": dtype, "pad_channels": pad_channels, **WHOLE}
    plain, erased = make(alike, 5, **settings), make(alike, 5, erase=0.6, **settings)
    spec, count = spec_of(size=32, erase=0.6), 0
    for epoch in range(3):
        for begin in (0, 5):
            (before, _), (after, _) = next(plain), next(erased)
            expected = before.copy()
            for row, place in enumerate(range(begin, begin + 5)):
                top, left, height, width = erasing.draw(spec, epoch, place)
                expected[row, top : top + height, left : left + width] = 0
                count += height > 0
            assert after.dtype == dtype
            np.testing.assert_array_equal(after, expected)
    assert 10 < count < 26


SETTINGS = [
    {**EVERYTHING, "last_batch": "partial"},
    {"augment": "trivial", "erase": 0.5, "flip": True, "last_batch": "drop"},
    {**RAND, "num_shards": 2, "shard": 1, "last_batch": "pad"},
]


@pytest.mark.parametrize("settings", first(0, SETTINGS, 1), ids=["everything", "trivial", "shard"])
def test_loading_a_snapshot_goes_on_bit_for_bit(make, noise, settings):  # noqa: F811
    """In the first and the second epoch, and around their ends; with other threads and other batches ahead."""
    expected = take(make(noise, **settings), 16)
    iterator = make(noise, **settings)
    for delivered in (1, 5, 6, 11):
        take(iterator, delivered - iterator.delivered)
        saved = serializers.npz.serialize(iterator)
        fresh = make(noise, **{**settings, "threads": 3, "prefetch": 3})
        serializers.NpzDeserializer(saved).load(fresh)
        assert_same(expected[delivered : delivered + 4], take(fresh, 4))
        fresh.finalize()


def test_settings_of_later_versions_are_in_snapshots_only_where_they_are_used(loaders, noise):  # noqa: F811
    """A snapshot that knows no extra operations is that of an iterator without any, and of no other."""
    plain, extra = (loaders("pillow", noise, augment="rand", extra_operations=names) for names in ((), ("invert",)))
    saved = serializers.npz.serialize(plain)
    assert b"extra_operations" not in saved["settings"].tobytes()
    with pytest.raises(DataError, match=r"extra_operations is \['invert'\] here, None in the snapshot"):
        serializers.NpzDeserializer(saved).load(extra)
    with pytest.raises(DataError, match=r"extra_operations is None here, \['invert'\] in the snapshot"):
        serializers.NpzDeserializer(serializers.npz.serialize(extra)).load(plain)


# Copies


@pytest.mark.parametrize("repeats", [1, 2, 3, 4, 6, 9])
def test_places_of_an_epoch_have_copies_one_behind_the_other(repeats):
    order = Order(spec_of(batch_size=6, repeats=repeats, seed=3), 20)
    for epoch in range(2):
        permutation = np.random.RandomState([3, epoch]).permutation(20)
        found = []
        for batch in range(4):
            number, indices = order.indices(4 * epoch + batch)
            assert number == epoch
            assert order.positions(4 * epoch + batch)[1].tolist() == list(range(6 * batch, min(6 * batch + 6, 20)))
            found += indices.tolist()
        assert found == [permutation[place // repeats] for place in range(20)]


def test_copies_of_an_image_are_augmented_each_by_itself(make, noise):  # noqa: F811
    """As many images as before, half of them others; all of them have another crop than their copy."""
    iterator = make(noise, 4, repeats=2)
    order, pictures = Order(spec_of(repeats=2), COUNT), 0
    while iterator.epoch == 0:
        _, indices = order.indices(iterator.delivered)
        x, t = next(iterator)
        np.testing.assert_array_equal(t, noise.labels[indices])
        assert len({image.tobytes() for image in x}) == len(x)
        pictures += len(x)
    assert pictures == COUNT


def test_crops_without_copies_are_those_of_earlier_versions(loaders, alike):
    """Snapshots of version 0.1 go on with the images that they would have had."""
    x, _ = next(loaders("pillow", alike, 2, size=32, crop_area=(0.3, 0.6), **PLAIN))
    assert np.rint(x.sum((1, 2, 3), np.float64)).astype(int).tolist() == EXPECTED_SUMS


EXPECTED_SUMS = [357115, 407496]


# Refusals


IMPOSSIBLE = [
    ({"augment": "auto"}, "augment 'auto': must be one of none, rand, trivial"),
    ({"augment_operations": 3}, "augment_operations 3: only with augment 'rand'"),
    ({"augment": "trivial", "augment_magnitude": 3}, "augment_magnitude 3: only with augment 'rand'"),
    ({"augment": "rand", "augment_operations": 0}, "augment_operations 0: must be 1 to 14"),
    ({"augment": "rand", "augment_magnitude": 31}, "augment_magnitude 31: must be 0 to 30"),
    ({"augment": "rand", "augment_deviation": -1}, "augment_deviation -1.0: must be 0 to 30"),
    ({"augment": "rand", "augment_deviation": float("nan")}, "augment_deviation nan: must be 0 to 30"),
    ({"augment": "rand", "augment_probability": 1.5}, "augment_probability 1.5: must be 0 to 1"),
    ({"extra_operations": ("invert",)}, "extra_operations ('invert',): only with augment 'rand'"),
    (
        {"augment": "rand", "extra_operations": ("rotate",)},
        f"extra_operations ('rotate',): must be from {', '.join(EXTRA)}, none of them twice",
    ),
    ({"erase": 1.5}, "erase 1.5: must be 0 to 1"),
    ({"repeats": 0}, "repeats 0: must be 1 to 1024"),
    ({"train": False, "augment": "rand"}, "augment rand: only for training"),
    ({"train": False, "erase": 0.5}, "erase 0.5: only for training"),
    ({"train": False, "repeats": 2}, "repeats 2: only for training"),
]


@pytest.mark.parametrize(("settings", "message"), IMPOSSIBLE)
def test_impossible_argument_is_named(loaders, noise, settings, message):  # noqa: F811
    with pytest.raises(DataError) as caught:
        loaders("pillow", noise, 4, **settings)
    assert str(caught.value) == message


def test_a_damaged_image_is_named(make, noise, tmp_path):  # noqa: F811
    """What is drawn for a batch does not stand in the way of finding the image that could not be decoded."""
    (tmp_path / "0").mkdir()
    for index in range(8):
        Image.new("RGB", (24, 20)).save(tmp_path / "0" / f"{index}.png")
    images = fake_scan(tmp_path)
    iterator = make(images, 4, augment="trivial", erase=0.5)
    take(iterator, 3)
    iterator.finalize()
    for index in range(8):
        (tmp_path / "0" / f"{index}.png").write_bytes(b"none")
    with pytest.raises(DataError, match=r"^.*/0/\d\.png: "):
        take(iterator, 2)
