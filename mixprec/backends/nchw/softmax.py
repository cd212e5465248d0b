"""Softmax on a CUDA device: one launch each."""

import math

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of

_FILE = "softmax"
_WARP = 32
_THREADS = 2**16  # that there should be before a thread has a whole column


class Softmaxes(Base):
    """Softmax and its logarithm along an axis of arrays, which are C-contiguous and of one storage dtype.

    An axis that an array does not have is an ``IndexError``.
    """

    def softmax(self, x, axis, log):
        """Returns a softmax.

        Args:
            x: array of any shape.
            axis: number of the axis along which the results add up to 1, from the end if it is negative.
            log: whether the logarithm is returned, which is computed as such.

        Returns:
            Array like ``x``.
        """
        y = self._empty(x.shape, x.dtype)
        self._launch_lines("softmax", [x, y], axis, log)
        return y

    def softmax_backward(self, y, dy, axis, log):
        """Returns the gradient of a softmax.

        Args:
            y: what :meth:`softmax` has returned.
            dy: gradient of the output, like ``y``.
            axis: as it was forward.
            log: as it was forward.

        Returns:
            dx, like ``y``.
        """
        dx = self._empty(y.shape, y.dtype)
        self._launch_lines("softmax_backward", [y, dy, dx], axis, log)
        return dx

    def _launch_lines(self, name, arrays, axis, log):
        """Launches a kernel on arrays (outer, count, inner): a thread has a column, or several share it, or a row."""
        shape, dtype, threads = arrays[0].shape, arrays[0].dtype, self.launcher.threads
        axis = range(len(shape))[axis]
        outer, count, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        if not count:
            return
        addresses = [self._address(array) for array in arrays]
        width = lanes = 1
        if inner == 1:
            width = width_of(count, [dtype], addresses)
            lanes = 1 << (count // width - 1).bit_length()
        else:
            lanes = 1 << max(0, min(count, _THREADS // max(1, outer * inner)).bit_length() - 1)
        lanes = threads if lanes > 2 * _WARP else min(lanes, _WARP)
        blocks = ceil_div(outer * inner, threads // lanes)
        arguments = [*addresses, outer * inner, count, inner, lanes, int(log)]
        self.kernels.launch(_FILE, name, blocks, arguments, dtype, width)
