"""Activation functions on a CUDA device: one launch each."""

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of

_FILE = "activation"


class Activations(Base):
    """Elementwise functions of arrays of any shape, which are C-contiguous and of one storage dtype.

    The mode is one of ``"relu"``, ``"clipped_relu"``, ``"sigmoid"``, ``"tanh"``. NaN stay NaN.
    """

    def activation(self, x, mode, coef=0.0):
        """Returns an activation.

        Args:
            x: array.
            mode: see above.
            coef: the ceiling of ``"clipped_relu"``; the others ignore it.

        Returns:
            Array like ``x``.
        """
        y = self._empty(x.shape, x.dtype)
        self._launch_elements(f"{mode}_forward", [x, y], coef)
        return y

    def activation_backward(self, x, y, dy, mode, coef=0.0):
        """Returns the gradient of an activation.

        Args:
            x: input, like ``dy``; only ``"clipped_relu"`` uses it.
            y: output, like ``dy``; ``"clipped_relu"`` ignores it.
            dy: gradient of the output.
            mode: see above.
            coef: as it was forward.

        Returns:
            dx, like ``dy``.
        """
        dx = self._empty(dy.shape, dy.dtype)
        self._launch_elements(f"{mode}_backward", [x if mode == "clipped_relu" else y, dy, dx], coef)
        return dx

    def _launch_elements(self, name, arrays, coef):
        addresses = [self._address(array) for array in arrays]
        size, dtype = arrays[0].size, arrays[0].dtype
        width = width_of(0, [dtype], addresses)
        blocks = ceil_div(size, self.launcher.threads * width)
        self.kernels.launch(_FILE, name, blocks, [*addresses, size, float(coef)], dtype, width)
