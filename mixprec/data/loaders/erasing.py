"""Random erasing (Zhong et al. 2017, arXiv:1708.04896): a rectangle of an image becomes the mean colour."""

import dataclasses

from mixprec.base.declaration import between, key
from mixprec.data.loaders.typed import Typed
from mixprec.data.loaders.uniforms import rectangles, uniforms

SOURCE, COUNTER, IS_OF_PIXELS = {"name": "boxes", "ndim": 1}, 3, False  # as of mixprec.data.loaders.augmentation.PARTS
_ATTEMPTS = 10
_AREA = (0.02, 0.33)  # of the image's
_ASPECT = (0.3, 3.3)  # height over width


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keys(Typed):
    """The probability."""

    erase: float = key(
        "Training: probability that a rectangle of an image becomes the mean colour (Zhong et al. 2017).",
        0.0,
        limit=between(0, 1),
        aliases=("random_erase", "reprob"),
    )


def impossible(settings):
    """Returns no message: no settings exclude each other."""
    return ()


def described(settings):
    """Returns a description of the erasing."""
    return f"a rectangle is erased with probability {settings.erase:g}"


def draw(spec, epoch, position):
    """Draws the rectangle of an image to erase, as ``torchvision.transforms.v2.RandomErasing`` does by default.

    The area is uniform, the aspect ratio log-uniform, the position uniform.

    Args:
        spec (BatchSpec): Its probability ``erase``, image size and seed are used.
        epoch (int): Number of the epoch.
        position (int): Position of the image in the order of the epoch.

    Returns:
        tuple of int: top, left, height, width in pixels; all 0 if nothing is erased.
    """
    chance, *attempts = uniforms(1 + 4 * _ATTEMPTS, spec, epoch, COUNTER, position)
    return box(spec.crop.size, attempts) if chance < spec.augmentation.erase else (0, 0, 0, 0)


def box(size, attempts):
    """Returns the rectangle of the first attempt that is smaller than the image on both sides.

    Args:
        size (int): Height and width of the image.
        attempts: Numbers in [0, 1), four an attempt: area, aspect ratio, vertical and horizontal position.

    Returns:
        tuple of int: top, left, height, width; all 0 if there is none.
    """
    low, high = (part * size * size for part in _AREA)
    for height, width, y, x in rectangles(low, high, _ASPECT, attempts):
        if height < size and width < size:
            return int(y * (size - height + 1)), int(x * (size - width + 1)), height, width
    return 0, 0, 0, 0


def pillow(normalized, box):
    """Writes 0 into the rectangle of an array (size, size, 3), and returns it."""
    top, left, height, width = box
    normalized[top : top + height, left : left + width] = 0
    return normalized


def rows(spec, box):
    """Returns the rectangle for :func:`dali`: float32 (4,)."""
    import numpy as np

    return np.array(box, np.float32)


def dali(dali, normalized, rows, spec):
    """Adds erasing to the graph: 0 in a rectangle of normalized images, (H, W, C)."""
    return dali.fn.erase(normalized, name="erase", anchor=rows[0:2], shape=rows[2:4], axis_names="HW", fill_value=0)
