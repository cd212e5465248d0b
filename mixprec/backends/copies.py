"""Copies between the memory of a device and another memory, for arrays that a round of training needs later."""

import os

import chainer

from mixprec.backends import is_of_numpy, registered
from mixprec.base.messages import OneLineError


def copies_for(array, to):
    """Returns new :class:`~mixprec.backends.copy_interface.Copies` for the device of an array; to be closed.

    Args:
        array: array of NumPy or CuPy. For a stand-in, the attribute ``copies`` of its registered primitives
            (:func:`mixprec.backends.register`) is called with ``to``.
        to: ``"host"`` for pinned memory of the host, or the path of a folder.

    Raises:
        OneLineError: the memory does not fit the device, or the folder cannot be used.
    """
    stand_in = registered(array)
    if stand_in is not None:
        return stand_in.copies(to)
    if not isinstance(to, (str, os.PathLike)) or not os.fspath(to):
        raise OneLineError(f'arrays are offloaded to "host" or to a folder; found {to!r}')
    if is_of_numpy(array):
        if to == "host":
            raise OneLineError('arrays of NumPy are on the host: offload them to a folder; found "host"')
        from mixprec.backends.file_copies import FileCopies

        return FileCopies(to)
    device = chainer.backend.get_device_from_array(array)
    if device.xp.__name__ != "cupy":
        raise TypeError(f"arrays of NumPy and CuPy can be offloaded; found {type(array).__module__}")
    if to != "host":
        raise OneLineError(f'arrays of CuPy are offloaded to "host"; found {os.fspath(to)!r}')
    from mixprec.backends.pinned_copies import PinnedCopies

    return PinnedCopies(device.device.id)
