"""Biases on a CUDA device."""

from mixprec.backends.cuda.columns import Columns


class Biases(Columns):
    """The biases of :class:`~mixprec.backends.primitives.Primitives`."""

    def bias_grad(self, dy, dtype):
        return self._sum_rows(dy, dtype)

    def add_bias(self, x, b):
        return self._add_row(x, b)
