"""Undoing a step: copies of arrays from before it, which are restored if the step is skipped.

They are for arrays that change before it is known whether the step is skipped: running statistics, which the forward
pass changes, and arrays that Chainer's own loop updates. The batched update needs no copies: it checks before it
updates.
"""

import contextlib
import operator

import numpy as np
from chainer import backend, get_array_types

from mixprec.backends.launch import text_of
from mixprec.backends.memory import in_order_of
from mixprec.backends.transfers import on_host

_PIECE = np.dtype([("from", np.uint64), ("to", np.uint64), ("bytes", np.int64)])  # as in kernels/save.cu
_BYTES = 16384  # per block, a multiple of all item sizes


class SavedArrays:
    """Copies that each :meth:`save` overwrites; addresses do not change, so that a CUDA graph may contain the launch.

    Args:
        arrays: C-contiguous arrays on the device.
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of the device.

    Attributes:
        copies: an array for each of ``arrays``.
    """

    def __init__(self, arrays, launcher):
        self._arrays, self._launcher = arrays, launcher
        self.copies = [launcher.empty(array.shape, array.dtype) for array in arrays]
        self._kernel = launcher.compile(source_of("save.cu", launcher.threads), ("save",))["save"]
        pieces = [
            (launcher.address(array) + start, launcher.address(copy) + start, min(_BYTES, array.nbytes - start))
            for array, copy in zip(arrays, self.copies, strict=True)
            for start in range(0, array.nbytes, _BYTES)
        ]
        self._blocks = len(pieces)
        self._table = table_of(np.array(pieces, _PIECE), launcher)

    def are_of(self, arrays):
        """Whether these are the arrays that are copied."""
        return len(arrays) == len(self._arrays) and all(map(operator.is_, arrays, self._arrays))

    def save(self):
        """Copies the current values of all arrays."""
        if self._blocks:
            self._launcher.launch(self._kernel, self._blocks, [self._launcher.address(self._table)])


def source_of(file, threads):
    """Returns the CUDA source with a file of ``kernels/``, for blocks of ``threads`` threads."""
    parts = text_of("mixprec.backends", "words.cuh"), text_of("mixprec.optimizer.batch", file)
    return "\n".join([f"#define THREADS {threads}", *parts, ""])


def table_of(rows, launcher):
    """Returns a structured array as bytes on the device."""
    table = launcher.empty((rows.nbytes,), np.dtype(np.uint8))
    launcher.upload(rows.view(np.uint8), table)
    return table


@contextlib.contextmanager
def overwritten(pairs):
    """A context in which arrays have other values; afterwards they are restored bit for bit.

    Arrays are written in place, so that graphs stay valid. Nothing is read from a device.

    Args:
        pairs: iterable of ``(array, values)``.
    """
    pairs = list(pairs)
    before = [(array, in_order_of(array, array)) for array, _ in pairs]  # copy all first: arrays may share memory
    try:
        with np.errstate(over="ignore"):
            for array, values in pairs:
                array[...] = values
        del pairs  # frees the values, too
        yield bool(before)
    finally:
        for array, value in before:
            array[...] = value


def restore(array, before, skipped, now=None):
    """Restores an array in place if a step is skipped.

    Args:
        array: the array.
        before: its values from before the step: an array, or a number.
        skipped: a bool, or a boolean array of shape () on any device, which is not read: elements are then selected.
        now: values to write if the step is not skipped; ``None`` leaves the array as it is.
    """
    now = array if now is None else now
    if on_host(skipped):
        array[...] = before if skipped else now
        return
    device = backend.get_device_from_array(array)
    if isinstance(before, get_array_types()):
        before = device.send(before)
    before = device.xp.asarray(before, dtype=array.dtype)
    array[...] = device.xp.where(device.send(skipped), before, device.send(now))
