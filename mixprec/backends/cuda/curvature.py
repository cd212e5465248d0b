"""Second moments and their inverses on CUDA, for K-FAC."""

from mixprec.backends.cuda.base import Base


class Curvatures(Base):
    """The second moments of :class:`~mixprec.backends.primitives.Primitives`."""

    def patch_moments(self, x, convolution, filter_size, out, *, bias=False, prologue=None):
        raise NotImplementedError

    def row_moments(self, dy, out):
        raise NotImplementedError

    def scale_moments(self, dy, x, gamma, beta, saved, out, *, relu=False):
        raise NotImplementedError

    def inverses(self, moments, shifts, out):
        raise NotImplementedError

    def products(self, a, b):
        raise NotImplementedError
