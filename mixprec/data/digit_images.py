"""A small real data set without a download: handwritten digits, as arrays or as JPEG files in ImageNet's layout.

They are in ``digits.npz``; ``digits.txt`` says who made them, and under which licence.
"""

import hashlib
import io
import pathlib

import numpy as np
from PIL import Image

from mixprec.data.data_error import DataError
from mixprec.data.generated_set import make_set

FOLDER = "data/digits"  # where configs look for the JPEG files, and where the command writes them

_ARRAYS = pathlib.Path(__file__).with_name("digits.npz")
_QUALITY = 95
_SMALLEST, _LARGEST = 32, 4096


def load_digits():
    """Returns 1,797 handwritten digits, in the order of scikit-learn's ``load_digits``.

    Returns:
        tuple: images, uint8 (1797, 8, 8) from 0 (paper) to 16 (ink); and labels, int32 (1797,) from 0 to 9.

    Example:
        >>> from mixprec.data.digit_images import load_digits
        >>> images, labels = load_digits()
        >>> images.shape, labels[:5].tolist()
        ((1797, 8, 8), [0, 1, 2, 3, 4])
    """
    with np.load(_ARRAYS) as arrays:
        return arrays["images"], arrays["labels"].astype(np.int32)


def make_digits(out, *, size=40, force=False):
    """Writes ``out/train/<digit>/*.jpg`` and ``out/val/<digit>/*.jpg`` and a manifest of them.

    The images of :func:`load_digits` are enlarged with Pillow's Lanczos filter and saved as gray JPEG of quality 95;
    the bytes depend on the version of Pillow and on nothing else.

    The split is stratified and uses no random numbers: within each digit the images are sorted by the SHA-256 of
    their 64 pixels (as bytes 0..16), and the first fifth, rounded down, is for validation.

    The folder is built beside ``out`` and renamed when it is complete.

    Args:
        out (path): Folder to make; its parent folders are made too.
        size (int): Height and width of the images in pixels, 32 to 4096.
        force (bool): Make an earlier set again that is damaged or has another size.

    Returns:
        tuple: ``(train, val, made)``: number of images in each part, and whether they were written just now.

    Raises:
        DataError: ``out`` cannot be written, holds other files, or holds another or a damaged set without ``force``.
    """
    if not _SMALLEST <= size <= _LARGEST:
        raise DataError(f"size {size}: must be {_SMALLEST} to {_LARGEST} pixels")
    # The source is called as in the sets that were made when scikit-learn had the images.
    parameters = {"source": "sklearn.datasets.load_digits", "size": size, "quality": _QUALITY}

    def images():
        named = _named(*load_digits())
        return len(named), ((name, _jpeg(pixels, size)) for name, pixels in named)

    return make_set(out, "digits", parameters, images, force=force)


def _named(images, digits):
    """List of (path inside the set, pixels 0..16), sorted by path; the number is the image's in :func:`load_digits`."""
    named = []
    for digit in range(10):
        members = np.flatnonzero(digits == digit).tolist()
        members.sort(key=lambda index: (hashlib.sha256(images[index].tobytes()).digest(), index))
        count = len(members) // 5
        for part, indices in (("val", members[:count]), ("train", members[count:])):
            named += [(f"{part}/{digit}/{index:04}.jpg", images[index]) for index in indices]
    return sorted(named, key=lambda pair: pair[0])


def _jpeg(pixels, size):
    """Enlarges 8x8 values of 0..16 to size x size and returns them as the bytes of a gray JPEG file."""
    levels = np.rint(pixels * (255 / 16)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).resize((size, size), Image.Resampling.LANCZOS).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
