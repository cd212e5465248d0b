"""The memory of gradients of one dtype: what is summed over ranks, and what parameters then have as gradients.

:mod:`~mixprec.distributed.exchange` makes an :class:`Arena` for each dtype of a model's parameters.
"""

import numpy as np

from mixprec.backends.memory import shaped


class Arena:
    """Two flat arrays, or one: gradients in the dtype of the sum, and in that of the parameters.

    Args:
        size: number of elements.
        dtype: of the parameters.
        dtype_of_sum: in which gradients are added.

    Attributes:
        sums: flat array in which gradients are packed, and summed.
        gradients: flat array in the dtype of the parameters; the same one if the dtypes are the same.
    """

    def __init__(self, size, dtype, dtype_of_sum):
        self.sums = np.zeros(size, dtype_of_sum)
        self.gradients = self.sums if self.sums.dtype == dtype else np.zeros(size, dtype)

    @property
    def rounds(self):
        """Whether sums are rounded into another array."""
        return self.gradients is not self.sums

    def views(self, slot, model):
        """Returns the parts of :attr:`sums` and :attr:`gradients` of one parameter, in its shape and order of axes.

        Args:
            slot: :class:`~mixprec.distributed.buckets.Slot`.
            model: array of the parameter.
        """
        sums = shaped(self.sums[slot.start : slot.stop], model)
        return sums, shaped(self.gradients[slot.start : slot.stop], model) if self.rounds else sums

    def round(self, start, stop):
        """Rounds a part of the sums into the gradients. A mean of finite gradients stays finite."""
        if self.rounds:
            with np.errstate(over="ignore"):  # that of others may not be finite
                self.gradients[start:stop] = self.sums[start:stop]


def pack(gradient, share, out):
    """Writes ``gradient * share`` into a part of an arena, with one rounding.

    Args:
        gradient: array of the shape of ``out``, or ``None`` for zeros.
        share: one over the number of ranks. Multiplied before the sum, no sum of float16 overflows unless a gradient
            does; a power of two changes no bit of a mantissa.
        out: array.
    """
    if gradient is None:
        out[...] = 0
    else:
        with np.errstate(all="ignore"):  # what is not finite is looked for after the sum
            np.multiply(gradient, share, out=out, dtype=np.result_type(out.dtype, np.float32), casting="unsafe")
