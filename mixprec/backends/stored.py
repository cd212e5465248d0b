"""A cache on disk of binaries that take long to compile: CUDA kernels, and engines of cuDNN."""

import hashlib
import os

from mixprec.base import files
from mixprec.base.announcements import announce


class Stored:
    """Bytes by a text that describes their source, each in a separate file with a checksum.

    A damaged file counts as missing, and is replaced; if files cannot be written, nothing is stored. Both are announced
    once.

    Args:
        folder: folder of the files, or ``None`` for no files.
        what: plural noun for them, for announcements.
        made_by: everything else that they depend on, with all versions; a part of each text.
    """

    def __init__(self, folder, what, made_by):
        self._folder, self._what, self._made_by = folder, what, made_by

    def get(self, key):
        """Returns the bytes for a text, or ``None``."""
        if self._folder is None:
            return None
        key = f"{self._made_by}\n{key}"
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                checksum, content = file.read(32), file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            announce("%s cannot be read, it is made again: %s", path, str(error))
            return None
        if checksum != _checksum(key, content):
            announce("%s is damaged, it is made again (%s)", path, self._what)
            return None
        return content

    def put(self, key, content):
        """Keeps bytes for a text."""
        if self._folder is None:
            return
        key = f"{self._made_by}\n{key}"
        try:
            os.makedirs(self._folder, exist_ok=True)
            with files.replacing(self._path(key)) as temporary, open(temporary, "wb") as file:
                file.write(_checksum(key, content) + content)
        except OSError as error:
            announce("%s cannot be kept in %s: %s", self._what, self._folder, error.strerror)

    def _path(self, key):
        return os.path.join(self._folder, hashlib.sha256(key.encode()).hexdigest()[:40])


def _checksum(key, content):
    """Returns 32 bytes, which depend on the text, too, as the name has only a part of its digest."""
    return hashlib.sha256(key.encode() + b"\0" + content).digest()
