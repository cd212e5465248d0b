"""Second moments and their inverses on NumPy, for K-FAC."""

import numpy as np

from mixprec.backends.cpu.blocks import widen
from mixprec.backends.cpu.convolution import columns_of, parts_of, windows_of

_quiet = np.errstate(over="ignore", invalid="ignore")


class SecondMoments:
    """The second moments of :class:`~mixprec.backends.primitives.Primitives`; inverses are computed in float64."""

    @_quiet
    def patch_moments(self, x, convolution, filter_size, out, *, bias=False):
        """See :meth:`~mixprec.backends.primitives.Primitives.patch_moments`."""
        (r, s), (groups, size, _) = filter_size, out.shape
        elements = size - bias
        channels = groups * elements // (r * s)
        out_shape = *convolution.out_size(x.shape[1:3], filter_size), 0
        for _, windows in windows_of(x[..., :channels], filter_size, convolution, out_shape):
            columns = columns_of(windows, groups)
            out[:, :elements, :elements] += columns.transpose(0, 2, 1) @ columns
            if bias:
                sums = columns.sum(axis=1)
                out[:, -1, :-1] += sums
                out[:, :-1, -1] += sums
                out[:, -1, -1] += columns.shape[1]

    @_quiet
    def row_moments(self, dy, out):
        """See :meth:`~mixprec.backends.primitives.Primitives.row_moments`."""
        groups, size, _ = out.shape
        rows = dy.reshape(-1, groups, size)
        for part, _ in parts_of(len(rows), 1, groups * size):
            block = widen(rows[part]).transpose(1, 0, 2)
            out += block.transpose(0, 2, 1) @ block

    @_quiet
    def scale_moments(self, dy, x, gamma, beta, saved, out, *, relu=False):
        """See :meth:`~mixprec.backends.primitives.Primitives.scale_moments`."""
        scale = gamma * saved.invstd
        bias = beta - saved.mean * scale
        channels = x.shape[-1]
        x, dy = (array.reshape(len(x), -1, channels) for array in (x, dy))
        for part, _ in parts_of(len(x), 1, 4 * x.shape[1] * channels):
            block, gradient = widen(x[part]), widen(dy[part])
            if relu:  # in the same steps as in the forward pass
                gradient = np.where(block * scale + bias > 0, gradient, np.float32(0))
            dgamma = np.einsum("npc,npc->nc", gradient, (block - saved.mean) * saved.invstd)
            dbeta = gradient.sum(axis=1)
            out += [(dgamma**2).sum(axis=0), (dgamma * dbeta).sum(axis=0), (dbeta**2).sum(axis=0)]

    @_quiet
    def inverses(self, moments, shifts, out):
        """See :meth:`~mixprec.backends.primitives.Primitives.inverses`."""
        diagonal = np.arange(moments.shape[1])
        for matrix, shift, result in zip(moments, shifts, out, strict=True):
            shifted = matrix.astype(np.float64)
            shifted[diagonal, diagonal] += shift
            if not np.isfinite(np.tril(shifted)).all():  # of an inf on the diagonal the inverse would be 0
                result[...] = np.nan
                continue
            try:
                root = np.linalg.inv(np.linalg.cholesky(shifted))
                inverse = np.tril(root.T @ root)
                result[...] = inverse + np.tril(inverse, -1).T
            except np.linalg.LinAlgError:
                result[...] = np.nan

    @_quiet
    def products(self, a, b):
        """See :meth:`~mixprec.backends.primitives.Primitives.products`."""
        return a @ b
