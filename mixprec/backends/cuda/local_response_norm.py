"""Local response normalization on a CUDA device: one launch each."""

from mixprec.backends.cuda.base import Base, ceil_div, rows_of

_FILE = "local_response_norm"


class LocalResponseNorms(Base):
    """The local response normalization of :class:`~mixprec.backends.primitives.Primitives`."""

    def local_response_norm(self, x, attributes):
        return self._launch_norm("local_response_norm", [x], attributes)

    def local_response_norm_backward(self, dy, x, attributes):
        slope = float(-2 * attributes.alpha * attributes.beta)
        return self._launch_norm("local_response_norm_backward", [dy, x], attributes, slope)

    def _launch_norm(self, name, inputs, attributes, *more):
        y = self._empty(inputs[0].shape, inputs[0].dtype)
        rows, channels = rows_of(y)
        width = self._width(channels, *inputs, y)
        groups = channels // width
        blocks = ceil_div(rows * groups, self.launcher.threads)
        arguments = [*inputs, y, rows * groups, groups, attributes.reach(channels)]
        arguments += [*map(float, (attributes.k, attributes.alpha, attributes.beta)), *more]
        self.kernels.launch(_FILE, name, blocks, arguments, y.dtype, width)
        return y
