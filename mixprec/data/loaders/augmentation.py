"""RandAugment and TrivialAugment: which operations an image gets, and how strongly. All loaders do these.

RandAugment (Cubuk et al. 2020, arXiv:1909.13719) does a few operations of one strength, TrivialAugment Wide (Mueller
and Hutter 2021, arXiv:2103.10158) one of any strength. Operations and their ranges are those of
``torchvision.transforms.v2.RandAugment`` and ``TrivialAugmentWide`` with 31 bins, as are directions, the nearest pixel
where a place falls between several, and black where it falls outside of the image.
"""

import math
from typing import NamedTuple

from mixprec.data.loaders.uniforms import AUGMENT, uniforms

AUGMENTATIONS = ("none", "rand", "trivial")
LAST_BIN = 30

OPERATIONS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "auto_contrast",
    "equalize",
)
_ENHANCEMENTS = ("brightness", "color", "contrast", "sharpness")

# The strongest of each; 0 is none. Shear: pixels a row. Rotation: degrees. Enhancements: the distance of the factor
# from 1. Posterizing: the bits that are lost.
_STRONGEST = {
    "rand": {"shear": 0.3, "rotate": 30, "enhance": 0.9, "posterize": 4},
    "trivial": {"shear": 0.99, "rotate": 135, "enhance": 0.99, "posterize": 6},
}
_NUMBERS = 5  # for each operation: which, whether at all, sign, and two for the magnitude


class Step(NamedTuple):
    """What is done to an image.

    Attributes:
        kind: ``'identity'``, ``'warp'`` or one of ``OPERATIONS`` that moves no pixels.
        value: of ``'warp'`` a matrix, six floats a, b, c, d, e, f: the pixel of which the centre is (x, y) gets the
            colour at (a x + b y + c, d x + e y + f), in pixels from the upper left corner. Of enhancements the factor.
            Of ``'posterize'`` the bits that are kept; of ``'solarize'`` the threshold, from which on colours are
            inverted. ``None`` for the others.
    """

    kind: str
    value: object = None


def steps(spec, epoch, place):
    """Draws what is done to an image.

    Args:
        spec (BatchSpec): With the policy, the size of the images and the seed.
        epoch (int): Number of the epoch.
        place (int): Of the image in the order of the epoch.

    Returns:
        list of Step: ``spec.augment_operations`` of them; one with TrivialAugment, none without augmentation.
    """
    if spec.augment == "none":
        return []
    count = spec.augment_operations if spec.augment == "rand" else 1
    numbers = iter(uniforms(_NUMBERS * count, spec, epoch, AUGMENT, place))
    found = []
    for which, skipped, sign, *strength in zip(*[numbers] * _NUMBERS, strict=True):
        operation = OPERATIONS[int(which * len(OPERATIONS))]
        if skipped >= spec.augment_probability:
            operation = "identity"
        found.append(step(spec.augment, operation, _bin(spec, *strength), -1 if sign < 0.5 else 1, spec.size))
    return found


def step(policy, operation, number, sign, size):
    """Returns the step of an operation.

    Args:
        policy (str): ``'rand'`` or ``'trivial'``.
        operation (str): One of ``OPERATIONS``.
        number (int): The bin of the magnitude, 0 to 30.
        sign (int): 1 or -1, for operations that have two directions.
        size (int): Height and width of the image.

    Returns:
        Step: What is done.

    Example:
        >>> step("rand", "brightness", 10, -1, 224)
        Step(kind='brightness', value=0.7)
        >>> step("trivial", "translate_x", 30, 1, 224)
        Step(kind='warp', value=(1.0, 0.0, -32.0, 0.0, 1.0, 0.0))
    """
    strongest = _STRONGEST[policy]
    if operation in ("identity", "auto_contrast", "equalize"):
        return Step(operation)
    if operation == "posterize":
        return Step(operation, round(8 - strongest["posterize"] * number / LAST_BIN))
    if operation == "solarize":
        return Step(operation, 255 * (LAST_BIN - number) / LAST_BIN)
    if operation in _ENHANCEMENTS:
        return Step(operation, 1 + sign * strongest["enhance"] * number / LAST_BIN)
    if operation == "rotate":
        return Step("warp", _rotation(sign * strongest["rotate"] * number / LAST_BIN, size))
    if operation in ("shear_x", "shear_y"):
        shear = sign * strongest["shear"] * number / LAST_BIN
        return _moving(operation, (1.0, shear, 0.0))
    # Whole pixels; of RandAugment up to 150 of 331. One division, so that it is exact where the result is.
    farthest, parts = (150 * size, 331) if policy == "rand" else (32, 1)
    moved = float(-sign * int(farthest * number / (parts * LAST_BIN)))
    return _moving(operation, (1.0, 0.0, moved))


def _moving(operation, row):
    """The step of an operation along one axis: where from, in pixels, by this axis, by the other one, and always."""
    own, other, always = row
    return Step("warp", (*row, 0.0, 1.0, 0.0) if operation.endswith("x") else (1.0, 0.0, 0.0, other, own, always))


def _bin(spec, first, second):
    """The bin of the magnitude: of TrivialAugment uniform, of RandAugment normal about the one that is asked for."""
    if spec.augment == "trivial":
        return int(first * (LAST_BIN + 1))
    normal = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)  # Box and Muller 1958
    return min(max(round(spec.augment_magnitude + spec.augment_deviation * normal), 0), LAST_BIN)


def _rotation(degrees, size):
    """Counter-clockwise about the centre; sines and cosines are rounded as in Pillow, to 15 digits."""
    angle, centre = -math.radians(degrees), size / 2
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    return (cos, sin, centre - (cos + sin) * centre, -sin, cos, centre - (cos - sin) * centre)
