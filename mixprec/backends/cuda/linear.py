"""Linear layers on CUDA, as convolutions with filters of one element, since CuPy's cuBLAS cannot be captured."""

from mixprec.backends.cuda.convolution import Convolutions
from mixprec.backends.geometry import Convolution

_POINTWISE = Convolution()


class Linears(Convolutions):
    """The products of matrices of :class:`~mixprec.backends.primitives.Primitives`."""

    def linear(self, x, w, b=None):
        return self.conv_fprop(_image(x), _image(w), _POINTWISE, b).reshape(len(x), len(w))

    def linear_dgrad(self, dy, w):
        shape = len(dy), w.shape[1]
        return self.conv_dgrad(_image(dy), _image(w), _POINTWISE, (shape[0], 1, 1, shape[1])).reshape(shape)

    def linear_wgrad(self, x, dy):
        shape = dy.shape[1], x.shape[1]
        return self.conv_wgrad(_image(x), _image(dy), _POINTWISE, (shape[0], 1, 1, shape[1])).reshape(shape)


def _image(matrix):
    rows, columns = matrix.shape
    return matrix.reshape(rows, 1, 1, columns)
