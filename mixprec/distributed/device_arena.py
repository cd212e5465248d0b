"""The memory of gradients of one dtype on a device: a bucket is packed by one launch when it is complete.

:mod:`~mixprec.distributed.exchange` makes a :class:`DeviceArena` for each dtype of a model whose parameters are on a
device.
"""

import numpy as np

from mixprec.backends.cuda.kernels import Kernels
from mixprec.backends.memory import axes, is_dense, same_order
from mixprec.backends.nccl import ANOTHER_COMMUNICATOR
from mixprec.distributed.arena import Arena
from mixprec.distributed.buckets import ALIGNED

# As in mixprec/backends/kernels/pack.cu: gradients per launch, and 64-bit numbers for each.
ROWS, NUMBERS = 160, 3


class DeviceArena(Arena):
    """An :class:`~mixprec.distributed.arena.Arena` on a device; gradients are held until their bucket is joined.

    Args:
        size, dtype, dtype_of_sum: as for :class:`~mixprec.distributed.arena.Arena`.
        transport: :class:`~mixprec.distributed.nccl_transport.NcclTransport`.
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of the device.
    """

    def __init__(self, size, dtype, dtype_of_sum, transport, launcher):
        self._launcher, self._kernels = launcher, Kernels(launcher)
        super().__init__(size, dtype, dtype_of_sum, transport)
        self._put = {}  # name -> gradient, until its bucket starts
        self._slots = {}  # name -> (slot, array of the parameter)

    def add(self, name, slot, model):
        """See :meth:`Arena.add`."""
        if not self._launcher.holds(model):
            raise ValueError(f"{name} has moved to another GPU than NCCL's: {ANOTHER_COMMUNICATOR}")
        super().add(name, slot, model)
        self._slots[name] = slot, model

    def put(self, name, gradient):
        """See :meth:`Arena.put`."""
        self._put[name] = gradient

    def start(self, bucket):
        """See :meth:`Arena.start`."""
        gradients = [self._put.pop(name) for name in bucket.names]
        held = [gradient for gradient in gradients if gradient is not None]
        return self._transport.start(
            self.sums[bucket.start : bucket.stop], lambda: self._pack(bucket.names, gradients), held
        )

    def end(self, bucket):
        """See :meth:`Arena.end`; rounds everything in one launch, as joining one bucket joins all."""
        if self.rounds and bucket.stop == self.sums.size:
            self._launch([(self.sums, self.sums.size, 0)], self.sums.dtype, 1.0, self.gradients)

    def _pack(self, names, gradients):
        """Packs gradients on the current stream, where it first copies them into the parameters' memory order."""
        rows = []
        for name, gradient in zip(names, gradients, strict=True):
            slot, model = self._slots[name]
            if gradient is not None and not (same_order(gradient, model) and is_dense(gradient)):
                gradient = self._launcher.contiguous(gradient.transpose(axes(model)))
            rows.append((gradient, slot.stop - slot.start, slot.start))
        self._launch(rows, self.gradients.dtype, self.share, self.sums)

    def _launch(self, rows, dtype, share, target):
        """Writes arrays, times ``share``, into an array, in one launch per ``ROWS`` arrays.

        Args:
            rows: ``[(array of dtype or None for zeros, its size, first element in the target)]``.
            dtype: dtype of the arrays.
            share: factor.
            target: flat array.
        """
        for first in range(0, len(rows), ROWS):
            part = rows[first : first + ROWS]
            blocks, table = 0, np.zeros((ROWS, NUMBERS), np.int64)
            for row, (array, size, start) in zip(table, part, strict=False):
                row[:] = 0 if array is None else self._launcher.address(array), size, start // ALIGNED << 32 | blocks
                blocks += -(-size // self._launcher.chunk)
            arguments = [table, len(part), target, share, self._launcher.chunk]
            self._kernels.launch("pack", "pack", blocks, arguments, dtype, other=target.dtype)

    def _zeros(self, size, dtype):
        dtype = np.dtype(dtype)
        return self._launcher.full(size, 0, f"u{dtype.itemsize}").view(dtype)
