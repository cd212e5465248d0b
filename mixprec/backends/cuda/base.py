"""The base of all primitives on a CUDA device: its launcher, its libraries, and new arrays."""

import math

import numpy as np

from mixprec.backends.cuda.kernels import Kernels, width_of


class Base:
    """A device with its launcher and libraries.

    Args:
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of the device.
        cudnn: :class:`~mixprec.backends.cudnn.context.CudnnContext` of the device.
        matrices: :class:`~mixprec.backends.cuda.matrix_context.MatrixContext` of the device.

    Attributes:
        launcher: the same.
        cudnn: the same.
        matrices: the same.
        kernels: :class:`~mixprec.backends.cuda.kernels.Kernels`.
    """

    def __init__(self, launcher, cudnn, matrices=None):
        self.launcher = launcher
        self.cudnn = cudnn
        self.matrices = matrices
        self.kernels = Kernels(launcher)

    def _empty(self, shape, dtype):
        """Returns a new uninitialized array."""
        return self.launcher.empty(shape, np.dtype(dtype))

    def _address(self, array):
        """Returns the address of the first element of a C-contiguous array."""
        return self.launcher.address(array)

    def _address_or_0(self, array):
        """Like :meth:`_address`, and 0 for ``None``."""
        return 0 if array is None else self._address(array)

    def _computed(self, plan, *inputs):
        """Runs a plan of cuDNN with one output, and returns that."""
        found = self._empty(plan.operation.outputs[0].shape, inputs[0].dtype)
        plan.run(*map(self._address, (*inputs, found)))
        return found

    def _width(self, length, *arrays):
        """Returns :func:`~mixprec.backends.cuda.kernels.width_of` for the dtype of the first array."""
        return width_of(length, [arrays[0].dtype], map(self._address, arrays))

    def _elementwise(self, file, name, inputs, *after, length=0):
        """Launches a kernel whose threads have neighbouring elements, and returns its result, like the first input.

        Args:
            file, name: of the kernel.
            inputs: arrays of one shape and dtype, the first arguments; the result is the next one.
            after: further arguments.
            length: of rows that a thread must not leave, or 0.
        """
        y = self._empty(inputs[0].shape, inputs[0].dtype)
        width = self._width(length, *inputs, y)
        blocks = ceil_div(y.size, self.launcher.threads * width)
        self.kernels.launch(file, name, blocks, [*inputs, y, *after], y.dtype, width)
        return y


def ceil_div(a, b):
    """Returns ``a / b`` for two ints, rounded up."""
    return -(-a // b)


def rows_of(array):
    """Returns ``(M, C)``: over all axes but the last, and the last."""
    return math.prod(array.shape[:-1]), array.shape[-1]
