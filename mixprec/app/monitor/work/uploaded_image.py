"""An uploaded image: from base64 to a source of one image, checked before it is decoded."""

import base64
import binascii
import io
import warnings

import numpy as np
from PIL import Image

from mixprec.app.monitor.access import LARGEST_UPLOAD
from mixprec.base.messages import OneLineError, one_line
from mixprec.data.sources.image_check import FORMATS, image_problem

_BYTES, _PIXELS = LARGEST_UPLOAD, 50_000_000
LONGEST = -(-_BYTES // 3) * 4  # characters in base64
_NAME = "the uploaded image"


class UploadError(OneLineError):
    """An upload that is not a valid image; the message is one line."""


class Upload:
    """A source of one image without a label, for :class:`~mixprec.app.finished.validation_images.ValidationImages`.

    Args:
        text (str): an image file in base64.

    Raises:
        UploadError: it is not base64, too large, or not an intact image in a format of training.
    """

    def __init__(self, text):
        self.labels = np.full(1, -1, np.int32)
        try:
            self._content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UploadError(f"{_NAME}: not base64; wanted: the bytes of an image file in base64") from error
        if len(self._content) > _BYTES:
            raise UploadError(f"{_NAME}: {len(self._content)} bytes; wanted: at most {_BYTES}")
        problem = self._problem()
        if problem:
            raise UploadError(f"{_NAME}: {problem}")

    def __len__(self):
        return 1

    def name(self, index):
        """The name of the image in messages."""
        return _NAME

    def read(self, index):
        """The bytes of the image."""
        return self._content

    def _problem(self):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")  # of huge pictures, which are refused here
            try:
                with Image.open(io.BytesIO(self._content), formats=FORMATS) as image:  # reads the header only
                    width, height = image.size
            except Image.DecompressionBombError:
                return f"too many pixels; wanted: at most {_PIXELS}"
            except Exception as error:  # as in image_problem
                return image_problem(io.BytesIO(self._content)) or one_line(error, 200)
            if width * height > _PIXELS:
                return f"{width} x {height} pixels; wanted: at most {_PIXELS}"
            return image_problem(io.BytesIO(self._content))
