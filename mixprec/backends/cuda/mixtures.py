"""Mixed images on a CUDA device: one launch."""

from mixprec.backends.cuda.base import Base, ceil_div


class Mixtures(Base):
    """The mixed images of :class:`~mixprec.backends.primitives.Primitives`."""

    def mix_images(self, x, share, box):
        y = self._empty(x.shape, x.dtype)
        size = x.size // max(len(x), 1)
        width = self._width(size, x, y)
        of_image = ceil_div(size, self.launcher.threads * width)
        arguments = [x, y, len(x), of_image, *x.shape[1:], *map(int, box), float(share)]
        self.kernels.launch("mixtures", "mix_images", len(x) * of_image, arguments, x.dtype, width)
        return y
