"""A small real data set without a download: scikit-learn's handwritten digits as JPEG files in ImageNet's layout."""

import hashlib
import io

import numpy as np
from PIL import Image

from mixprec.base.installation import install_hint
from mixprec.data.data_error import DataError
from mixprec.data.generated_set import make_set

_QUALITY = 95
_SMALLEST, _LARGEST = 32, 4096


def make_digits(out, *, size=40, force=False):
    """Writes ``out/train/<digit>/*.jpg`` and ``out/val/<digit>/*.jpg`` and a manifest of them.

    The source is Alpaydin and Kaynak's *Optical Recognition of Handwritten Digits* (UCI, 1998), whose 1,797 test
    images of 8x8 pixels come with scikit-learn. They are enlarged with Pillow's Lanczos filter and saved as gray JPEG
    of quality 95; the bytes depend on the version of Pillow and on nothing else.

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
    parameters = {"source": "sklearn.datasets.load_digits", "size": size, "quality": _QUALITY}

    def images():
        named = named_images()
        return len(named), ((name, _jpeg(pixels, size)) for name, pixels in named)

    return make_set(out, "digits", parameters, images, force=force)


def named_images():
    """Returns pairs (path inside the set, pixels 0..16 as uint8 (8, 8)), sorted by path; it begins with the part.

    Raises:
        DataError: scikit-learn cannot be imported.
    """
    return _named(*_load())


def _load():
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(f"scikit-learn cannot be imported ({error}): {install_hint('digits')}") from error
    bunch = load_digits()
    return bunch.images.astype(np.uint8), bunch.target


def _named(images, digits):
    """List of (path inside the set, pixels 0..16), sorted by path; the number is the image's in scikit-learn."""
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
