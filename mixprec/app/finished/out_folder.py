"""The folder of an export: tried before anything is computed, and all files or none."""

import contextlib
import errno
import os
import tempfile

from mixprec.base import files, working_folder

JSON, PICTURE = "export.json", "export.png"
NAMES = {"float32": "model.onnx", "float16": "model_fp16.onnx", "int8": "model_int8.onnx"}
_FAILED = ".failed"


@contextlib.contextmanager
def tried(out):
    """Makes a folder, or tries whether files can be written into it; after an exception it removes what it has made.

    Args:
        out: its path.

    Raises:
        OSError: it is no folder, cannot be made, or cannot be written into.
    """
    if os.path.exists(out) and not os.path.isdir(out):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", out)
    missing, folder = [], working_folder.absolute(out)
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    try:
        os.makedirs(out, exist_ok=True)
        with _named(out), tempfile.TemporaryFile(prefix=files.TEMPORARY, dir=out):
            pass
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):  # it is not there, or something is in it
                os.rmdir(folder)
        raise


def failed(name):
    """Returns the name of a file that is not as accurate as it must be."""
    stem, suffix = os.path.splitext(name)
    return f"{stem}{_FAILED}{suffix}"


def replace(out, contents):
    """Writes the files of an export: all of them, or none. Then it removes those of an earlier one that it has not.

    Args:
        out: the folder.
        contents: bytes by name. The last one is the last that is put in its place.

    Raises:
        OSError: a file cannot be written; the folder is as it was.
    """
    with _named(out), files.replacing_all([os.path.join(out, name) for name in contents]) as temporaries:
        for temporary, data in zip(temporaries, contents.values(), strict=True):
            with open(temporary, "wb") as file:
                file.write(data)
    for name in {*NAMES.values(), *map(failed, NAMES.values())} - contents.keys():
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.remove(os.path.join(out, name))


@contextlib.contextmanager
def _named(out):
    """Has errors name the folder, where they would name a temporary file, or nothing."""
    try:
        yield
    except OSError as error:
        is_ours = error.filename is None or os.path.basename(error.filename).startswith(files.TEMPORARY)
        raise OSError(error.errno, error.strerror, out if is_ours else error.filename) from error
