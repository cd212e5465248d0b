"""The objects that loaders take, from settings by name, with defaults for what a test does not care about."""

import dataclasses
import weakref

import pytest

from mixprec.data.loaders.augmentation import Augmentation
from mixprec.data.loaders.epochs import Shard
from mixprec.data.loaders.pillow import PillowIterator
from mixprec.data.loaders.spec import BatchSpec, Crop, Delivery, Normalization

_PARTS = {"crop": Crop, "normalization": Normalization, "shard": Shard, "augmentation": Augmentation}


def spec_of(**settings):
    """Returns a BatchSpec."""
    settings = {"batch_size": 4, "train": True, "size": 16, "seed": 1, **settings}
    parts = {name: _taken(kind, settings) for name, kind in _PARTS.items()}
    return BatchSpec(**parts, **settings)


def objects(batch_size=4, **settings):
    """Returns the BatchSpec and the Delivery; ``before`` is epochs and batches of earlier stages."""
    settings["epochs_before"], settings["batches_before"] = settings.pop("before", (0, 0))
    delivery = _taken(Delivery, settings := {"dtype": "float32", "threads": 1, **settings})
    return spec_of(batch_size=batch_size, **settings), delivery


def dali_iterator(images, batch_size=4, **settings):
    """Returns a DaliIterator, or skips the test."""
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    from mixprec.data.loaders.dali import DaliIterator

    device = {name: settings.pop(name) for name in ("device_id", "decode") if name in settings}
    return DaliIterator(images, *objects(batch_size, **{"threads": 2, **settings}), **device)


@pytest.fixture
def pillow_iterator():
    """Makes a PillowIterator, whose processes end with the test."""
    made = weakref.WeakSet()

    def build(images, batch_size=4, **settings):
        iterator = PillowIterator(images, *objects(batch_size, **settings))
        made.add(iterator)
        return iterator

    yield build
    for iterator in made:
        iterator.finalize()


def _taken(kind, settings):
    names = [field.name for field in dataclasses.fields(kind) if field.name in settings]
    return kind(**{name: settings.pop(name) for name in names})
