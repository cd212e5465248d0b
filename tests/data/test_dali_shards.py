"""DALI over TFRecord and WebDataset shards: order, labels, snapshots, the names of bad images; and readers of files."""

import io
import itertools

import numpy as np
import pytest
from chainer import serializers
from PIL import Image

from mixprec.data.data_error import DataError
from mixprec.data.sources.shards import FORMATS, scan_shards
from tests.data.test_dali import (
    COUNT,
    PLAIN,
    assert_same,
    epochs_of,
    images_of,
    make,  # noqa: F401 (fixture)
    take,
)

PARTS = (5, 1, 9, 6)  # of 21 images, on four shards
LABELS = tuple(index % 4 for index in range(COUNT))  # of 4 classes, and not in the order of the images


@pytest.fixture(params=["tfrecord", "webdataset"])
def form(request):
    return request.param


def encoded(index):
    """An image of one gray level, as the loader's tests have them in files."""
    file = io.BytesIO()
    Image.new("RGB", (24, 20), (10 * index,) * 3).save(file, "PNG" if index % 2 else "BMP")
    return file.getvalue()


def write(folder, form, images=encoded):
    """Shards of 21 images; returns their paths."""
    bounds = [0, *itertools.accumulate(PARTS)]
    paths = []
    for part, (start, stop) in enumerate(itertools.pairwise(bounds)):
        samples = [
            FORMATS[form].encode(index, images(index), LABELS[index], f"{index}.png")[0] for index in range(start, stop)
        ]
        paths.append(folder / f"train-{part:05}-of-{len(PARTS):05}{FORMATS[form].SUFFIX}")
        paths[-1].write_bytes(b"".join(samples) + FORMATS[form].END)
    return paths


@pytest.fixture
def flat_shards(tmp_path, form, cache_home):
    write(tmp_path, form)
    return scan_shards(tmp_path)


@pytest.mark.parametrize("window", [1, 4, 1000])
def test_every_epoch_has_every_image_once_in_a_new_order(make, flat_shards, window):  # noqa: F811
    epochs = epochs_of(make(flat_shards, flip=True, shuffle_window=window, **PLAIN), 4)
    orders = []
    for batches in epochs:
        assert [len(images) for images, _ in batches] == [4, 4, 4, 4, 4, 1]
        for images, labels in batches:
            assert labels.dtype == np.int32
            assert labels.tolist() == [LABELS[image] for image in images]
        orders.append(images_of(batches))
        assert sorted(orders[-1]) == list(range(COUNT))
    assert len(set(map(tuple, orders))) > 1
    if window > 1:
        assert len(set(map(tuple, orders))) == len(orders)


def test_validation_has_the_images_in_order(make, flat_shards):  # noqa: F811
    iterator = make(flat_shards, train=False, **PLAIN)
    for _ in range(2):
        ((*batches,),) = epochs_of(iterator, 1)
        assert images_of(batches) == list(range(COUNT))
        assert np.concatenate([labels for _, labels in batches]).tolist() == list(LABELS)
        iterator.reset()


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_snapshot_after_any_batch_goes_on_bit_for_bit(make, flat_shards, num_shards):  # noqa: F811
    """The window is no part of it: DALI reads on to where it was. Of two shards each is read by Python."""
    settings = {"flip": True, "shuffle_window": 4, "last_batch": "pad", "num_shards": num_shards}
    iterator = make(flat_shards, **settings)
    snapshots, batches = [], []
    for _ in range(11):
        snapshots.append(serializers.npz.serialize(iterator))
        batches += take(iterator, 1)
    for number in range(8):
        fresh = make(flat_shards, **settings)
        serializers.NpzDeserializer(snapshots[number]).load(fresh)
        assert_same(batches[number : number + 3], take(fresh, 3))


def test_a_snapshot_with_another_window_is_refused_in_training(make, flat_shards):  # noqa: F811
    saved = serializers.npz.serialize(make(flat_shards, shuffle_window=8))
    with pytest.raises(DataError, match="shuffle_window is 9 here, 8 in the snapshot"):
        serializers.NpzDeserializer(saved).load(make(flat_shards, shuffle_window=9))
    saved = serializers.npz.serialize(make(flat_shards, train=False, shuffle_window=8))
    serializers.NpzDeserializer(saved).load(make(flat_shards, train=False, shuffle_window=9))


@pytest.mark.parametrize("train", [True, False])
def test_an_image_broken_after_the_scan_is_named(make, tmp_path, form, cache_home, train):  # noqa: F811
    """Some batches come before it, so that DALI's reader has a state; the index files stay as they are."""
    shards = write(tmp_path, form)
    images = scan_shards(tmp_path)
    with open(shards[2], "r+b") as file:
        file.seek(images.offsets[12])
        file.write(b"garbage " * (int(images.sizes[12]) // 8))
    iterator = make(images, 2, train=train, shuffle_window=3)
    with pytest.raises(DataError) as caught:
        take(iterator, 11)
    assert str(caught.value).startswith(f"{images.name(12)}: not an image")
    delivered = iterator.epoch_detail
    with pytest.raises(DataError):  # it must not go on behind the broken image
        next(iterator)
    assert iterator.epoch_detail == delivered


def test_skipped_samples_do_not_come(make, tmp_path, form, cache_home):  # noqa: F811
    write(tmp_path, form, lambda index: b"no image" if index in (4, 5) else encoded(index))
    images = scan_shards(tmp_path, "skip")
    assert len(images) == COUNT - 2
    assert len(images.shards) == len(PARTS) - 1  # the second one held no other image
    for batches in epochs_of(make(images, 5, **PLAIN), 2):
        assert sorted(images_of(batches)) == sorted(set(range(COUNT)) - {4, 5})
        for found, labels in batches:
            assert labels.tolist() == [LABELS[image] for image in found]


def test_a_shard_removed_after_the_scan_is_named(make, tmp_path, form, cache_home):  # noqa: F811
    shards = write(tmp_path, form)
    images = scan_shards(tmp_path)
    shards[2].unlink()
    with pytest.raises(DataError, match=str(shards[2])) as caught:
        take(make(images, 2), 11)
    assert "\n" not in str(caught.value)
