"""The operations of RandAugment and TrivialAugment, a file each, or one for those that are alike.

Operations and their ranges are those of ``torchvision.transforms.v2.RandAugment`` and ``TrivialAugmentWide`` with 31
bins, as are directions, the nearest pixel where a place falls between several, and black where it falls outside of the
image. Extra ones are drawn where ``extra_operations`` names them.

A config is checked by what is declared here: modules import Pillow and NumPy where they use them.
"""

import importlib

# In the order in which they are drawn, which the images of a seed follow from: new files come last.
_FILES = (
    "image_operation",
    "warps",
    "enhancements",
    "levels",
    "histograms",
    "solarize_add",
)
_ALL = [each for file in _FILES for each in importlib.import_module(f"{__name__}.{file}").OPERATIONS]

OPERATIONS = {each.name: each for each in _ALL if not each.is_extra}
EXTRA = {each.name: each for each in _ALL if each.is_extra}


def available(extra):
    """Returns a dict of the operations that are drawn by name, with extra ones of these names."""
    return {**OPERATIONS, **{name: EXTRA[name] for name in extra}}


def kinds(extra):
    """Returns a dict from each of their kinds to one of them; all of a kind do the same with a value."""
    return {each.kind: each for each in available(extra).values()}
