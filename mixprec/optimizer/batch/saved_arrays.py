"""Taking a step back: copies of arrays from before it, and bringing them back where the step is skipped.

What moves before it is known whether the step counts goes this way: running statistics, which the forward pass moves,
and what Chainer's own loop updates. The batch needs no copies: it checks before it updates.
"""

import contextlib
import operator

import numpy as np
from chainer import backend, get_array_types

from mixprec.backends.launch import text_of
from mixprec.backends.memory import in_order_of
from mixprec.backends.transfers import on_host

_PIECE = np.dtype([("from", np.uint64), ("to", np.uint64), ("bytes", np.int64)])  # as in kernels/save.cu
_BYTES = 16384  # of an array for a block, a multiple of all dtypes


class SavedArrays:
    """Copies that are overwritten by each :meth:`save`; addresses stay, so that a CUDA graph may hold the launch.

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
        """Copies all arrays as they are now."""
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
    """Inside of the block arrays have other values; after it they are, bit for bit, what they were.

    They are written in place, so that graphs stay valid. Nothing is read from a device.

    Args:
        pairs: yields ``(array, values)``.
    """
    pairs = list(pairs)
    before = [(array, in_order_of(array, array)) for array, _ in pairs]  # all first: they may share memory
    try:
        with np.errstate(over="ignore"):
            for array, values in pairs:
                array[...] = values
        del pairs  # and values with them
        yield bool(before)
    finally:
        for array, value in before:
            array[...] = value


def restore(array, before, skipped, now=None):
    """Brings an array back if a step is skipped, in place.

    Args:
        array: the array.
        before: what was in it before the step: an array, or a number.
        skipped: a bool, or a boolean array of shape () on any device, which is not read: elements are then selected.
        now: what to leave in it if the step counts, ``None`` for what is there.
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
