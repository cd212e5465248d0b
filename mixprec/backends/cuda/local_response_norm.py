"""Local response normalization on a CUDA device: one launch each."""

from mixprec.backends.cuda.base import Base, ceil_div, rows_of
from mixprec.backends.cuda.kernels import width_of

_FILE = "local_response_norm"


class LocalResponseNorms(Base):
    """The local response normalization of :class:`~mixprec.backends.primitives.Primitives`."""

    def local_response_norm(self, x, attributes):
        y = self._empty(x.shape, x.dtype)
        self._launch_norm("local_response_norm", [x, y], attributes)
        return y

    def local_response_norm_backward(self, dy, x, attributes):
        dx = self._empty(x.shape, x.dtype)
        slope = float(-2 * attributes.alpha * attributes.beta)
        self._launch_norm("local_response_norm_backward", [dy, x, dx], attributes, slope)
        return dx

    def _launch_norm(self, name, arrays, attributes, *more):
        rows, channels = rows_of(arrays[0])
        addresses = [*map(self._address, arrays)]
        width = width_of(channels, [arrays[0].dtype], addresses)
        groups = channels // width
        blocks = ceil_div(rows * groups, self.launcher.threads)
        arguments = [*addresses, rows * groups, groups, attributes.reach(channels)]
        arguments += [*map(float, (attributes.k, attributes.alpha, attributes.beta)), *more]
        self.kernels.launch(_FILE, name, blocks, arguments, arrays[0].dtype, width)
