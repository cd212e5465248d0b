"""Second moments and their inverses on CUDA, for K-FAC: products by cuBLAS, and kernels around them."""

import math

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div, rows_of
from mixprec.backends.cuda.stem import Squares

_FLOAT = np.dtype(np.float32)
_MULTIPLE = 8  # of elements that rows of patches have, which Tensor cores like
_CHUNK = 32 << 20  # bytes of patches at a time: they stay in the second-level cache of an H100, which has 50 MB
_SMALL = 64  # rows of matrices that one kernel inverts, and of larger ones at a time: ROWS in inverses.cu
_ZEROS = 8  # that a thread writes
_LANES = 32  # channels beside each other in a block, in vectors of 16 bytes or one by one
_BLOCKS = 512  # that there should be before a thread has more rows than it reads at once
_ROWS = 4  # that a thread reads at once


class Curvatures(Base):
    """The second moments of :class:`~mixprec.backends.primitives.Primitives`."""

    def patch_moments(self, x, convolution, filter_size, out, *, bias=False):
        if isinstance(convolution, Squares):
            x_shape = len(x), *convolution.size, (out.shape[1] - bias) // math.prod(filter_size)
            x = self.conv_images_backward(x, convolution, x_shape, x.dtype)
        out_size = convolution.out_size(x.shape[1:3], filter_size)
        is_pointwise = (*filter_size, *convolution.pad) == (1, 1, 0, 0) and out_size == x.shape[1:3]
        if is_pointwise and not bias:
            self._add_moments(x, out)
            return
        groups, size, _ = out.shape
        places, width = math.prod(out_size), ceil_div(size, _MULTIPLE) * _MULTIPLE
        positions = len(x) * places
        chunk = min(max(_CHUNK // (groups * width * x.dtype.itemsize), 1), positions)
        if not chunk:
            return
        patches = self._empty((groups * chunk * width,), x.dtype)
        of_group = (size - bias) // math.prod(filter_size)
        together = self._width(math.gcd(of_group, x.shape[3]), x)
        rest = [groups, width // together, *x.shape[1:], places, out_size[1], *filter_size, of_group]
        rest += [*convolution.stride, *convolution.pad, *convolution.dilation, int(bias)]
        for first in range(0, positions, chunk):
            rows = min(chunk, positions - first)
            arguments = [x, patches, *divmod(first, places), rows, *rest]
            blocks = ceil_div(groups * rows * width // together, self.launcher.threads)
            self.kernels.launch("patches", "patches", blocks, arguments, x.dtype, together)
            layout = self._address(patches), width, rows * width
            self.matrices.add_moments(layout, x.dtype, rows, self._address(out), size, groups)

    def row_moments(self, dy, out):
        self._add_moments(dy, out)

    def scale_moments(self, dy, x, gamma, beta, saved, out, *, relu=False):
        samples, channels = len(x), x.shape[-1]
        places = math.prod(x.shape[1:-1])
        if not x.size:
            return
        width = self._width(channels, x, dy)
        vectors, threads = channels // width, self.launcher.threads
        lanes = _power_of_two(vectors)
        tiles = ceil_div(vectors, lanes)
        # Whole rounds of a block, of which each sample has as many parts as it takes to fill a GPU.
        step = threads // lanes * _ROWS
        parts = min(ceil_div(places, step), ceil_div(_BLOCKS, samples * tiles))
        of_part = ceil_div(ceil_div(places, parts), step) * step
        parts = ceil_div(places, of_part)
        gradients = self._empty((samples, parts, 2, channels), _FLOAT)
        arguments = [dy, x, gamma, beta, saved.mean, saved.invstd, gradients]
        arguments += [places, vectors, lanes, tiles, parts, of_part, int(relu)]
        blocks = samples * parts * tiles
        self.kernels.launch("scale_moments", "scale_gradients", blocks, arguments, x.dtype, width)
        lanes = _power_of_two(channels)
        arguments = [gradients, out, samples, parts, channels, lanes]
        self.kernels.launch("scale_moments", "scale_squares", ceil_div(channels, lanes), arguments, _FLOAT)

    def inverses(self, moments, shifts, out):
        groups, size, _ = moments.shape
        if not moments.size:
            return
        if size <= _SMALL:
            self.kernels.launch("inverses", "small_inverses", groups, [moments, shifts, out, size], _FLOAT)
            return
        matrices, panels = self._empty(moments.shape, _FLOAT), self._empty((groups, _SMALL, size), _FLOAT)
        factors = self._empty((groups, _SMALL, _SMALL), _FLOAT)
        addresses = [*map(self._address, (matrices, panels, factors, out))]
        arguments = [moments, shifts, matrices, out, groups, size]
        blocks = ceil_div(moments.size, self.launcher.threads)
        self.kernels.launch("inverses", "begin_inverses", blocks, arguments, _FLOAT)
        for first in range(0, size, _SMALL):
            end = min(first + _SMALL, size)
            self._eliminate(*addresses, groups, size, first, end)

    def _eliminate(self, matrix, panel, factor, found, groups, size, first, end):
        """Does the steps of some rows of ``[matrix | 1]``, see inverses.cu, and adds their part of the inverse.

        Args:
            matrix: address of (groups, size, size).
            panel: address for these rows after the steps: of the inverse factor, then of the transposed factor.
            factor: address for the inverse of the factor's block on the diagonal.
            found: address of the sum of all parts.
            groups: number of matrices.
            size: number of their rows.
            first: the first of the rows.
            end: the first row after them.
        """
        rows, below, whole = end - first, size - end, size * size
        blocks = 1 + ceil_div(below * rows, self.launcher.threads * _ZEROS)
        arguments = [matrix, factor, size, first, rows, blocks]
        self.kernels.launch("inverses", "factor_blocks", groups * blocks, arguments, _FLOAT)

        step, multiply = size * _FLOAT.itemsize, self.matrices.multiply  # bytes of a row
        before, after = ((matrix + row * step, size, whole) for row in (first, end))
        here, right = ((panel + column * _FLOAT.itemsize, size, _SMALL * size) for column in (0, end))
        multiply((factor, _SMALL, _SMALL**2), before, here, (rows, size, rows), groups)
        multiply(right, here, after, (below, size, rows), groups, transposed=True, alpha=-1, beta=1)
        multiply(here, here, (found, size, whole), (end, end, rows), groups, transposed=True, beta=1)

    def products(self, a, b):
        groups, rows, inner = a.shape
        columns = b.shape[2]
        found = self._empty((groups, rows, columns), _FLOAT)
        if found.size and inner:
            left, right, product = map(self._address, (a, b, found))
            left, right = (left, inner, rows * inner), (right, columns, inner * columns)
            self.matrices.multiply(left, right, (product, columns, rows * columns), (rows, columns, inner), groups)
        else:
            self.launcher.zero(found)
        return found

    def _add_moments(self, rows, out):
        """Adds the second moments of rows (..., C), whose first elements belong to all groups."""
        groups, size, _ = out.shape
        count, channels = rows_of(rows)
        layout = self._address(rows), channels, size
        self.matrices.add_moments(layout, rows.dtype, count, self._address(out), size, groups)


def _power_of_two(count):
    """Returns the number of vectors beside each other in a block."""
    return min(_LANES, 1 << (count - 1).bit_length())
