"""The operations of RandAugment and TrivialAugment, each in a file, or several similar ones in one.

Operations, ranges and directions follow ``torchvision.transforms.v2.RandAugment`` and ``TrivialAugmentWide`` with 31
bins, with nearest-pixel interpolation and black outside the image. Extra operations are drawn where
``extra_operations`` names them. Begin with ``image_operation``, the base class; then ``enhancements``, ``levels``,
``solarize_add`` and ``warps`` in any order.

Configs are checked by these declarations: modules import Pillow and NumPy only where they use them.
"""

import importlib

# The order determines the operations that a seed draws: new files come last.
_FILES = ("image_operation", "warps", "enhancements", "levels", "solarize_add")
_ALL = [each for file in _FILES for each in importlib.import_module(f"{__name__}.{file}").OPERATIONS]

OPERATIONS = {each.name: each for each in _ALL if not each.is_extra}
EXTRA = {each.name: each for each in _ALL if each.is_extra}


def available(extra):
    """Returns a dict of the operations that are drawn by name, with extra ones of these names."""
    return {**OPERATIONS, **{name: EXTRA[name] for name in extra}}


def kinds(extra):
    """Returns a dict from each kind to one operation of it; all of a kind treat a value in the same way."""
    return {each.kind: each for each in available(extra).values()}
