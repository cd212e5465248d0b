"""Small pictures as PNG files in base64, from encoded images and from arrays."""

import base64
import io
import warnings

from PIL import Image, ImageOps

from mixprec.data.data_error import DataError
from mixprec.data.sources.image_check import FORMATS


def thumbnail(source, index, size):
    """Returns an image of a source, upright, as PNG in base64.

    Args:
        source: from :func:`mixprec.data.sources.opening.open_images`.
        index: index of the image.
        size: largest number of pixels of the longer side.

    Raises:
        DataError: it cannot be read; the message names it.
    """
    encoded = source.read(index)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")  # of huge pictures, as when they are checked
            return _thumbnail(encoded, size)
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error... for broken images
        raise DataError(f"{source.name(index)}: {error}") from error


def png(image):
    """Returns a Pillow image as PNG in base64."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def png_of_array(pixels):
    """Returns pixels, uint8 (H, W) or (H, W, 3), as PNG in base64."""
    return png(Image.fromarray(pixels))


def _thumbnail(encoded, size):
    with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
        for xmp in ("xmp", "XML:com.adobe.xmp"):  # the loaders do not look there for an orientation
            image.info.pop(xmp, None)
        image.draft(None, (2 * size, 2 * size))  # a JPEG is decoded at a fraction of its size
        ImageOps.exif_transpose(image, in_place=True)
        small = image.convert("RGB")
    small.thumbnail((size, size), Image.Resampling.BOX)
    return png(small)
