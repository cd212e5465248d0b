"""Mixed images on a CUDA device: one launch."""

from mixprec.backends.cuda.base import Base, ceil_div
from mixprec.backends.cuda.kernels import width_of


class Mixtures(Base):
    """The mixed images of :class:`~mixprec.backends.primitives.Primitives`."""

    def mix_images(self, x, share, box):
        y = self._empty(x.shape, x.dtype)
        addresses = [self._address(x), self._address(y)]
        size = x.size // max(len(x), 1)
        width = width_of(size, [x.dtype], addresses)
        of_image = ceil_div(size, self.launcher.threads * width)
        arguments = [*addresses, len(x), of_image, *x.shape[1:], *map(int, box), float(share)]
        self.kernels.launch("mixtures", "mix_images", len(x) * of_image, arguments, x.dtype, width)
        return y
