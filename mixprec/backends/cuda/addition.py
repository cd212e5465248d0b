"""Addition on a CUDA device: one launch."""

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of


class Additions(Base):
    """The addition of :class:`~mixprec.backends.primitives.Primitives`."""

    def add(self, a, b):
        y = self._empty(a.shape, a.dtype)
        addresses = [self._address(a), self._address(b), self._address(y)]
        width = width_of(0, [a.dtype], addresses)
        blocks = ceil_div(a.size, self.launcher.threads * width)
        self.kernels.launch("addition", "add", blocks, [*addresses, a.size], a.dtype, width)
        return y
