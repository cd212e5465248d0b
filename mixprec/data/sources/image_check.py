"""The check of an image: it is good if it is intact, and if Pillow and DALI decode it to the same pixels."""

import os
import re

from PIL import Image

from mixprec.base.files import open_regular
from mixprec.base.messages import encoding_hint, one_line

A_FOLDER = "a folder, where an image should be"
# Part of every digest: raise it when the check becomes stricter.
CHECK_VERSION = 3

# Modes of Pillow for which its convert("RGB") and DALI 2.4 agree bit for bit (CMYK: to one level of 255, which DALI
# truncates and Pillow rounds). Not in the list: TIFF with a palette, gray with alpha, one bit or CMYK, which DALI
# decodes differently or not at all; and JPEG 2000, for which Pillow does not report the number of bits a channel.
_MODES = {
    "JPEG": {"L", "RGB", "CMYK"},
    "PNG": {"1", "L", "LA", "P", "RGB", "RGBA"},
    "BMP": {"1", "L", "P", "RGB"},
    "TIFF": {"L", "RGB", "RGBA"},
    "WEBP": {"RGB", "RGBA"},
    "PPM": {"1", "L", "RGB"},
}
FORMATS = tuple(_MODES)

_ORIENTATION = 0x112  # the tag in EXIF data


def image_problem(image):
    """Decodes one image completely and returns its fault in one line, or None.

    Faults are: a file that is empty, cut off, not an image or in another format; more than 8 bits a channel; 1x1
        pixels;
    and images that DALI and Pillow decode to different pixels, or that DALI cannot decode (``_MODES``; JPEGs with a
    damaged header or with CMYK of unknown polarity; an EXIF orientation that is not a number). Gray, palette and CMYK
    pictures are good; both loaders convert them to RGB and ignore alpha.

    Args:
        image (str or binary file): Path, or an open file with ``read`` and ``seek``.
    """
    if not isinstance(image, str):
        return _file_problem(image)
    try:
        image.encode()
        with open_regular(image) as file:
            return _file_problem(file)
    except IsADirectoryError:
        return A_FOLDER
    except UnicodeEncodeError:
        return f"the path is not valid UTF-8{encoding_hint(image)}"
    except ValueError:  # of a null character, which a damaged list may have
        return "not a path"
    except OSError as error:
        return error.strerror or str(error)


def is_of_unknown_format(path):
    """Whether a file can be opened, and is not an image in a known format by its first bytes; nothing is decoded."""
    try:
        with open_regular(path) as file, Image.open(file, formats=FORMATS):
            return False
    except Image.UnidentifiedImageError:
        return True
    except Exception:  # a fault of its own, which the check describes
        return False


def _file_problem(file):
    try:
        if file.read(2) == b"\xff\xd8" and (problem := _jpeg_header_problem(file)):
            return problem
        file.seek(0)
        with Image.open(file, formats=FORMATS) as image:
            problem = _content_problem(image)
            if problem is None:
                image.draft("L", (1, 1))  # all of a JPEG is read, but hardly any pixel computed: quicker by a third
                image.load()
                turned = image.getexif().get(_ORIENTATION, 1)
                if not isinstance(turned, (int, str)) and turned not in (1, b"\1"):  # such as bytes, or a fraction
                    return "an EXIF orientation that is not a number, which DALI and Pillow read differently; remove it"
                if image.format == "PNG":
                    _check_chunks(file)
            return problem
    except Image.UnidentifiedImageError:
        if file.seek(0, os.SEEK_END) == 0:
            return "the file is empty"
        return f"not an image in a known format ({', '.join(FORMATS)})"
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error... for broken images
        return one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__, 200)


def _check_chunks(file):
    """Raises an error if a checksum of a PNG is wrong or its end is missing: DALI checks this, ``load`` does not."""
    file.seek(0)
    with Image.open(file, formats=("PNG",)) as image:
        image.verify()


def _content_problem(image):
    """The fault of an image that has been opened but not decoded yet, or None."""
    kind = "JPEG" if image.format == "MPO" else image.format  # a JPEG followed by more pictures
    codec, arguments = (image.tile[0].codec_name, image.tile[0].args) if image.tile else ("", "")
    layout = arguments if isinstance(arguments, str) else str(arguments[0])  # such as "RGB;16B"
    bits = re.search(r";(\d+)", layout)
    if bits and int(bits[1]) > 8:
        return f"{bits[1]} bits a {'pixel' if kind == 'BMP' else 'channel'}; convert it to 8 bits a channel"
    if image.mode not in _MODES[kind]:
        return f"{kind} of mode {image.mode}, which DALI and Pillow read differently; convert it to RGB"
    if kind == "PPM" and codec != "raw":
        return "PPM that is not binary, with values up to 255; convert it to PNG"
    if image.mode == "CMYK" and "adobe" not in image.info:
        return "CMYK without Adobe's marker, which DALI and Pillow read differently; convert it to RGB"
    if kind == "WEBP" and "exif" in image.info:
        return "WebP with EXIF data, which DALI does not always read; remove the EXIF data"
    if image.size == (1, 1):
        return "1x1 pixels: a placeholder, not a picture"
    return None


def _jpeg_header_problem(file):
    """Walks the segments of a JPEG header, after its first two bytes.

    libjpeg skips bytes that do not belong there, DALI 2.4 does not; on a second EXIF segment with another orientation
    DALI crashes.
    """
    exif = 0
    while True:
        marker = file.read(2)
        while marker == b"\xff\xff":  # fill bytes
            marker = b"\xff" + file.read(1)
        if len(marker) < 2 or marker == b"\xff\xda":  # cut off, which Pillow reports; or the pixels begin
            return None
        length = int.from_bytes(file.read(2), "big")
        if marker[0] != 0xFF or marker[1] < 0xC0 or 0xD0 <= marker[1] <= 0xD9 or length < 2:
            return "damaged JPEG header"
        if marker[1] == 0xE1 and length >= 8:
            exif += file.read(6) == b"Exif\0\0"
            length -= 6
        if exif > 1:
            return "two EXIF segments in a JPEG; remove one"
        file.seek(length - 2, os.SEEK_CUR)
