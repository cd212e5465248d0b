"""Random erasing (Zhong et al. 2017, arXiv:1708.04896): a rectangle of an image becomes the mean colour."""

import math

from mixprec.data.loaders.uniforms import ERASE, uniforms

_ATTEMPTS = 10
_AREA = (0.02, 0.33)  # of the image's
_ASPECT = (0.3, 3.3)  # height over width


def erased_box(spec, epoch, place):
    """Draws the rectangle of an image that is erased, as ``torchvision.transforms.v2.RandomErasing`` does by default.

    The area is uniform, the aspect ratio log-uniform, the position uniform.

    Args:
        spec (BatchSpec): With the probability ``erase``, the size of the images and the seed.
        epoch (int): Number of the epoch.
        place (int): Of the image in the order of the epoch.

    Returns:
        tuple of int: top, left, height, width in pixels; all 0 if nothing is erased.
    """
    chance, *attempts = uniforms(1 + 4 * _ATTEMPTS, spec, epoch, ERASE, place)
    return box(spec.size, attempts) if chance < spec.erase else (0, 0, 0, 0)


def box(size, attempts):
    """Returns the rectangle of the first attempt that is smaller than the image on both sides.

    Args:
        size (int): Height and width of the image.
        attempts: Numbers in [0, 1), four an attempt: area, aspect ratio, vertical and horizontal position.

    Returns:
        tuple of int: top, left, height, width; all 0 if there is none.
    """
    low, high = (part * size * size for part in _AREA)
    flat, tall = map(math.log, _ASPECT)
    numbers = iter(attempts)
    for place, shape, y, x in zip(numbers, numbers, numbers, numbers, strict=True):
        area, ratio = low + (high - low) * place, math.exp(flat + (tall - flat) * shape)
        height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if height < size and width < size:
            return int(y * (size - height + 1)), int(x * (size - width + 1)), height, width
    return 0, 0, 0, 0
