"""Second moments and their inverses on CUDA, for K-FAC: products by cuBLAS, and kernels around them."""

import math

import numpy as np

from mixprec.backends.cuda.base import Base, ceil_div, rows_of
from mixprec.backends.cuda.kernels import width_of

_FLOAT = np.dtype(np.float32)
_MULTIPLE = 8  # of elements that rows of patches have, which Tensor cores like
_CHUNK = 32 << 20  # bytes of patches at a time: they stay in the second-level cache of an H100, which has 50 MB
_SMALL = 64  # rows of matrices that our kernel inverts, see inverses.cu
_LANES = 32  # channels beside each other in a block, in vectors of 16 bytes or one by one
_BLOCKS = 512  # that there should be before a thread has more rows than it reads at once
_ROWS = 4  # that a thread reads at once


class Curvatures(Base):
    """The second moments of :class:`~mixprec.backends.primitives.Primitives`."""

    def patch_moments(self, x, convolution, filter_size, out, *, bias=False, prologue=None):
        out_size = convolution.out_size(x.shape[1:3], filter_size)
        is_pointwise = (*filter_size, *convolution.pad) == (1, 1, 0, 0) and out_size == x.shape[1:3]
        if is_pointwise and not bias and prologue is None:
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
        given = [self._address(x), *map(self._address_or_0, prologue or (None, None))]
        together = width_of(math.gcd(of_group, x.shape[3]), [x.dtype], given)
        given.append(self._address(patches))
        rest = [groups, width // together, *x.shape[1:], places, out_size[1], *filter_size, of_group]
        rest += [*convolution.stride, *convolution.pad, *convolution.dilation, int(bias)]
        for first in range(0, positions, chunk):
            rows = min(chunk, positions - first)
            arguments = [*given, *divmod(first, places), rows, *rest]
            blocks = ceil_div(groups * rows * width // together, self.launcher.threads)
            self.kernels.launch("patches", "patches", blocks, arguments, x.dtype, together)
            self.matrices.add_moments(given[-1], x.dtype, rows, width, groups, size, rows * width, self._address(out))

    def row_moments(self, dy, out):
        self._add_moments(dy, out)

    def scale_moments(self, dy, x, gamma, beta, saved, out, *, relu=False):
        samples, channels = len(x), x.shape[-1]
        places = math.prod(x.shape[1:-1])
        if not x.size:
            return
        addresses = [*map(self._address, (dy, x))]
        width = width_of(channels, [x.dtype], addresses)
        vectors, threads = channels // width, self.launcher.threads
        lanes = _power_of_two(vectors)
        tiles = ceil_div(vectors, lanes)
        # Whole rounds of a block, of which each sample has as many parts as it takes to fill a GPU.
        step = threads // lanes * _ROWS
        parts = min(ceil_div(places, step), ceil_div(_BLOCKS, samples * tiles))
        of_part = ceil_div(ceil_div(places, parts), step) * step
        parts = ceil_div(places, of_part)
        gradients = self._empty((samples, parts, 2, channels), _FLOAT)
        arguments = [*addresses, *map(self._address, (gamma, beta, saved.mean, saved.invstd, gradients))]
        arguments += [places, vectors, lanes, tiles, parts, of_part, int(relu)]
        blocks = samples * parts * tiles
        self.kernels.launch("scale_moments", "scale_gradients", blocks, arguments, x.dtype, width)
        lanes = _power_of_two(channels)
        arguments = [self._address(gradients), self._address(out), samples, parts, channels, lanes]
        self.kernels.launch("scale_moments", "scale_squares", ceil_div(channels, lanes), arguments, _FLOAT)

    def inverses(self, moments, shifts, out):
        groups, size, _ = moments.shape
        if not moments.size:
            return
        given = [*map(self._address, (moments, shifts, out))]
        if size <= _SMALL:
            self.kernels.launch("inverses", "small_inverses", groups, [*given, size], _FLOAT)
            return
        info = self._empty((groups, 2), np.int32)
        blocks, shape = ceil_div(moments.size, self.launcher.threads), [groups, size]
        self.kernels.launch("inverses", "shift_diagonals", blocks, [*given, *shape], _FLOAT)
        self.matrices.invert(self._address(out), groups, size, self._address(info))
        written = [self._address(out), self._address(info)]
        self.kernels.launch("inverses", "mirror_triangles", blocks, [*written, *shape], _FLOAT)

    def products(self, a, b):
        groups, rows, inner = a.shape
        columns = b.shape[2]
        found = self._empty((groups, rows, columns), _FLOAT)
        if inner:
            self.matrices.multiply(*map(self._address, (a, b, found)), groups, rows, columns, inner)
        else:
            self.launcher.zero(found)
        return found

    def _add_moments(self, rows, out):
        """Adds the second moments of rows (..., C), whose first elements are those of all groups."""
        groups, size, _ = out.shape
        addresses = [*map(self._address, (rows, out))]
        count, channels = rows_of(rows)
        self.matrices.add_moments(addresses[0], rows.dtype, count, channels, groups, size, size, addresses[1])


def _power_of_two(count):
    """Returns how many of so many vectors lie beside each other in a block."""
    return min(_LANES, 1 << (count - 1).bit_length())
