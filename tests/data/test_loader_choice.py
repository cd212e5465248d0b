"""``image_iterator``: DALI where it is installed, otherwise Pillow, with the batches of the class itself."""

import numpy as np
import pytest
from PIL import Image

from mixprec.data import BatchSpec, Crop, DaliIterator, DataError, Delivery, PillowIterator, image_iterator, open_images
from mixprec.data.loaders import loader_choice

CROP = Crop(size=16)


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 20, 3), 40 * number, np.uint8)).save(path)
    return tmp_path / "images"


def test_without_dali_pillow_decodes(folder, monkeypatch):
    def missing():
        raise DataError("NVIDIA DALI cannot be imported")

    monkeypatch.setattr(loader_choice, "require_dali", missing)
    found = image_iterator(folder, 2, CROP, train=True, seed=3, last_batch="drop", device="@numpy")
    spec = BatchSpec(batch_size=2, train=True, crop=CROP, seed=3, last_batch="drop")
    expected = PillowIterator(open_images(folder), spec, Delivery(dtype="float32", threads=1))
    try:
        assert type(found) is PillowIterator
        for _ in range(2):
            for one, other in zip(found.next(), expected.next(), strict=True):
                np.testing.assert_array_equal(one, other)
    finally:
        found.finalize()
        expected.finalize()


def test_where_dali_is_installed_it_decodes(folder):
    pytest.importorskip("nvidia.dali")
    found = image_iterator(open_images(folder), 2, CROP, train=False)
    assert type(found) is DaliIterator
    x, t = found.next()
    assert (x.shape, x.dtype, t.tolist()) == ((2, 16, 16, 3), np.float32, [0, 0])
