"""The memory of gradients of one dtype: sums over ranks, and the arrays that become the parameters' gradients.

:mod:`~mixprec.distributed.exchange` makes an arena for each dtype of a model's parameters: :class:`Arena` on NumPy,
:class:`~mixprec.distributed.device_arena.DeviceArena` on a device.
"""

import numpy as np

from mixprec.backends.memory import shaped


class Arena:
    """Two flat NumPy arrays: gradients in the dtype of the sum, and in the parameters' dtype; one if the dtypes match.

    Args:
        size: number of elements.
        dtype: dtype of the parameters.
        dtype_of_sum: dtype in which gradients are added.
        transport: :class:`~mixprec.distributed.transport.Transport`.

    Attributes:
        sums: flat array in which gradients are packed, and summed.
        gradients: flat array in the dtype of the parameters; the same array as ``sums`` if the dtypes are the same.
    """

    def __init__(self, size, dtype, dtype_of_sum, transport):
        self._transport = transport
        self.share = 1 / transport.size
        self.sums = self._zeros(size, dtype_of_sum)
        self.gradients = self.sums if self.sums.dtype == dtype else self._zeros(size, dtype)
        self._views = {}  # name -> (part of the sums, part of the gradients)

    @property
    def rounds(self):
        """Whether sums are rounded into another array."""
        return self.gradients is not self.sums

    def add(self, name, slot, model):
        """Gives a parameter its parts of :attr:`sums` and :attr:`gradients`, in its shape and order of axes.

        Args:
            name: name of the parameter.
            slot: :class:`~mixprec.distributed.buckets.Slot`.
            model: array of the parameter.
        """
        sums = shaped(self.sums[slot.start : slot.stop], model)
        gradients = shaped(self.gradients[slot.start : slot.stop], model) if self.rounds else sums
        self._views[name] = sums, gradients

    def mean(self, name):
        """Returns the gradient array of a parameter, a view of :attr:`gradients`."""
        return self._views[name][1]

    def put(self, name, gradient):
        """Packs a gradient, immediately or when its bucket starts.

        Args:
            name: name of the parameter.
            gradient: array of its shape; ``None`` for zeros.
        """
        pack(gradient, self.share, self._views[name][0])

    def start(self, bucket):
        """Starts the sum of a :class:`~mixprec.distributed.buckets.Bucket` whose gradients are all packed.

        Returns:
            :class:`~mixprec.distributed.transport.Work`.
        """
        return self._transport.start(self.sums[bucket.start : bucket.stop])

    def end(self, bucket):
        """Called for each bucket in order when its sum is joined: writes the result to :attr:`gradients`."""
        if self.rounds:
            with np.errstate(over="ignore"):  # gradients of other ranks may not be finite
                self.gradients[bucket.start : bucket.stop] = self.sums[bucket.start : bucket.stop]

    def _zeros(self, size, dtype):
        return np.zeros(size, dtype)


def pack(gradient, share, out):
    """Writes ``gradient * share`` into a part of an arena, with one rounding.

    Args:
        gradient: array of the shape of ``out``, or ``None`` for zeros.
        share: one over the number of ranks. As it is applied before the sum, no sum in float16 overflows unless a
            gradient does, or is within a rounding of it; a power of two changes no bit of a mantissa.
        out: array.
    """
    if gradient is None:
        out[...] = 0
    else:
        with np.errstate(all="ignore"):  # the check for inf and NaN comes after the sum
            np.multiply(gradient, share, out=out, dtype=np.result_type(out.dtype, np.float32), casting="unsafe")
