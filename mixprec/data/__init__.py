"""Training data: ``sources`` of images, ``loaders`` that make batches of them, and two small sets.

Reading order. ``sources`` (files on disk as a list of images with labels), ``loaders`` (batches), ``mixing`` (Mixup and
CutMix), ``data_error`` (the error for every fault of the data). The sets are handwritten digits (``digit_images``) and
generated pictures (``textures``), both written by ``generated_set``. The names below are imported on first use, so that
none needs NumPy or DALI before. ``docs/data.md`` explains everything.

Example:
    >>> from mixprec.data import BatchSpec, Crop
    >>> BatchSpec(batch_size=256, train=True, crop=Crop(size=224, flip=True), seed=0).crop.size
    224
"""

import importlib
from typing import TYPE_CHECKING

_HOMES = {
    "Augmentation": "loaders.augmentation",
    "BatchSpec": "loaders.spec",
    "Crop": "loaders.spec",
    "DaliIterator": "loaders.dali",
    "DataError": "data_error",
    "Delivery": "loaders.spec",
    "Mixing": "mixing",
    "Normalization": "loaders.spec",
    "PillowIterator": "loaders.pillow",
    "Shard": "loaders.epochs",
    "SyntheticIterator": "loaders.synthetic",
    "image_iterator": "loaders.loader_choice",
    "open_images": "sources.opening",
    "to_nchw": "loaders.batch",
    "to_padded_nchw": "loaders.batch",
}

__all__ = [name for name in _HOMES if not name.startswith("to_")]  # the converters are objects

if TYPE_CHECKING:
    from mixprec.data.data_error import DataError as DataError
    from mixprec.data.loaders.augmentation import Augmentation as Augmentation
    from mixprec.data.loaders.batch import to_nchw as to_nchw
    from mixprec.data.loaders.batch import to_padded_nchw as to_padded_nchw
    from mixprec.data.loaders.dali import DaliIterator as DaliIterator
    from mixprec.data.loaders.epochs import Shard as Shard
    from mixprec.data.loaders.loader_choice import image_iterator as image_iterator
    from mixprec.data.loaders.pillow import PillowIterator as PillowIterator
    from mixprec.data.loaders.spec import BatchSpec as BatchSpec
    from mixprec.data.loaders.spec import Crop as Crop
    from mixprec.data.loaders.spec import Delivery as Delivery
    from mixprec.data.loaders.spec import Normalization as Normalization
    from mixprec.data.loaders.synthetic import SyntheticIterator as SyntheticIterator
    from mixprec.data.mixing import Mixing as Mixing
    from mixprec.data.sources.opening import open_images as open_images
else:  # with a ``__getattr__`` a type checker would take any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'mixprec.data' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"mixprec.data.{_HOMES[name]}"), name)
        globals()[name] = value  # looked up once
        return value
