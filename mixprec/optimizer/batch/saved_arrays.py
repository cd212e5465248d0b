"""Copies of many arrays on a device, made by one launch: running statistics, before a step moves them."""

import operator

import numpy as np

from mixprec.backends.launch import text_of

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
        self._kernel = launcher.compile(source_of(launcher.threads), ("save",))["save"]
        pieces = [
            (launcher.address(array) + start, launcher.address(copy) + start, min(_BYTES, array.nbytes - start))
            for array, copy in zip(arrays, self.copies, strict=True)
            for start in range(0, array.nbytes, _BYTES)
        ]
        self._blocks = len(pieces)
        table = np.array(pieces, _PIECE).view(np.uint8)
        self._table = launcher.empty(table.shape, table.dtype)
        launcher.upload(table, self._table)

    def are_of(self, arrays):
        """Whether these are the arrays that are copied."""
        return len(arrays) == len(self._arrays) and all(map(operator.is_, arrays, self._arrays))

    def save(self):
        """Copies all arrays as they are now."""
        if self._blocks:
            self._launcher.launch(self._kernel, self._blocks, [self._launcher.address(self._table)])


def source_of(threads):
    """Returns the CUDA source, for blocks of ``threads`` threads."""
    parts = text_of("mixprec.backends", "words.cuh"), text_of("mixprec.optimizer.batch", "save.cu")
    return "\n".join([f"#define THREADS {threads}", *parts, ""])
