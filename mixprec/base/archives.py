"""Files of arrays, .npz and .npy: read whole, or refused in one line. Nothing in them is ever executed."""

import contextlib
import zipfile

import numpy as np

from mixprec.base.messages import OneLineError


class Damaged(OneLineError):
    """A file is damaged or invalid; the message is one line without the file's name."""


@contextlib.contextmanager
def reading(part=""):
    """A context for reading such a file: any exception of the reading library becomes a :class:`Damaged`.

    There is no list of exceptions, as each way to compress has its own, and so has each kind of damage: a header that
    NumPy cannot parse, a member that is encrypted or of an unknown kind. So the context should contain nothing but the
    reading.

    Args:
        part: name of the part of the file, for the message.
    """
    try:
        yield
    except Damaged as error:
        raise (Damaged(f"{part}: {error}") if part else error) from error.__cause__
    except OneLineError:  # raised by the caller, with a better message
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")
        raise Damaged(f"{part}: {said}" if part else said) from error


def read_arrays(file, choose=list, objects=None):
    """Reads arrays of an .npz file. Each member is read to its end, where its checksum is.

    Args:
        file: binary file.
        choose: function from the list of the names of all arrays to the names of the arrays to read.
        objects: function from name and shape of an array of Python objects, which is not read, to a replacement;
            ``None`` refuses such arrays.

    Returns:
        dict: arrays by name.

    Raises:
        Damaged: the file is not an .npz file, or is corrupt.
        KeyError: a chosen name is not in the file.
    """
    with reading():
        archive = zipfile.ZipFile(file)
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    found = {}
    for name in choose(list(members)):
        if name not in members:
            raise KeyError(f"{name} is not a file in the archive")
        with reading(name):
            shape = None if objects is None else _shape_of_objects(archive.open(members[name]))
            array = read_array(archive.open(members[name])) if shape is None else None
        found[name] = array if shape is None else objects(name, shape)
    return found


def read_array(file):
    """Returns the array of an .npy file.

    Args:
        file: binary file.

    Raises:
        Damaged: the file is not an .npy file, is corrupt, or holds Python objects.
    """
    with reading():
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # at the end an archive compares the checksum
            raise ValueError("more bytes than its array has")
        return array


def _shape_of_objects(file):
    """Returns the shape of an array of Python objects, and ``None`` for an array of numbers."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    return shape if dtype.hasobject else None
