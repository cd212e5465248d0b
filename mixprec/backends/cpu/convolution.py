"""Convolutions on NumPy: products of matrices of many images at a time, in float32, rounded once."""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mixprec.backends.cpu.blocks import narrow_to, widen
from mixprec.backends.geometry import Following

# Bytes of float32 for the columns of one part and their results. They should stay in a processor's third-level cache,
# and be enough for a fast product of matrices: from 4 to 64 MiB differ by 6 %.
LIMIT = 8 << 20
_SUMMED = 256  # rows whose sums are taken in float32


class Convolutions:
    """The primitives of convolution, see :class:`~mixprec.backends.primitives.Primitives`."""

    @np.errstate(over="ignore", invalid="ignore")
    def conv_fprop(self, x, w, convolution, b=None, *, relu=False, statistics=False):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_fprop`."""
        if isinstance(statistics, Following):  # which takes its own sums, after rounding
            return self.conv_fprop(x, w, convolution, b, relu=relu), None
        (k, r, s, c), groups = w.shape, convolution.groups
        y = np.empty(convolution.y_shape(x.shape, w.shape), x.dtype)
        sums = np.zeros((2, k))
        filters, bias = widen(w), None if b is None else widen(b)
        for part, windows in windows_of(x[..., : c * groups], (r, s), convolution, y.shape[1:]):
            wide = _room(y[part], filters.dtype)
            if _is_depthwise(w.shape, groups):
                np.einsum("nhwrsc,rsc->nhwc", windows, _depthwise_taps(filters), out=wide)
            else:
                rows = filters.reshape(groups, k // groups, r * s * c)
                np.matmul(columns_of(windows, groups), rows.transpose(0, 2, 1), out=_by_group(wide, groups))
            if bias is not None:
                wide += bias
            if relu:
                np.maximum(wide, 0, out=wide)
            if statistics:
                _add_sums(wide.reshape(-1, k), sums)
            _store(wide, y[part])
        return (y, sums.astype(np.float32)) if statistics else y

    @np.errstate(over="ignore", invalid="ignore")
    def conv_dgrad(self, dy, w, convolution, x_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_dgrad`."""
        (k, r, s, c), groups, (n, height, width, _) = w.shape, convolution.groups, x_shape
        (oh, ow), channels = dy.shape[1:3], c * groups
        dx = (np.empty if x_shape[3] == channels else np.zeros)(x_shape, dy.dtype)
        multiply = _times_tap(widen(w), groups)
        # No columns here: one product for each element of the filter, added at its position.
        size = height * width * channels + oh * ow * (k + channels)
        for images, _ in parts_of(n, 1, size):
            gradient, target = widen(dy[images]), dx[images][..., :channels]
            wide = _room(target, gradient.dtype)
            if is_pointwise((r, s), convolution) and convolution.stride == (1, 1):
                multiply(gradient, (0, 0), wide)
            else:
                wide[...] = 0
                product = np.empty((*gradient.shape[:3], channels), gradient.dtype)
                for tap, outputs, inputs in taps_of((height, width), (oh, ow), (r, s), convolution):
                    multiply(gradient, tap, product)
                    wide[inputs] += product[outputs]
            _store(wide, target)
        return dx

    @np.errstate(over="ignore", invalid="ignore")
    def conv_wgrad(self, x, dy, convolution, w_shape):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_wgrad`."""
        (_, r, s, c), groups = w_shape, convolution.groups
        total = None
        for part, windows in windows_of(x[..., : c * groups], (r, s), convolution, dy.shape[1:]):
            gradient = widen(dy[part])
            if _is_depthwise(w_shape, groups):
                product = np.einsum("nhwrsc,nhwc->ncrs", windows, gradient).sum(0)
            else:
                columns = columns_of(windows, groups)
                product = np.matmul(_by_group(gradient, groups).transpose(0, 2, 1), columns)
            total = product if total is None else np.add(total, product, out=total)
        dw = np.zeros(w_shape, x.dtype)
        if total is not None:
            narrow_to(total.reshape(w_shape), dw)
        return dw


def _is_depthwise(w_shape, groups):
    """Whether each channel has its own filter: products of matrices would be too many and too small."""
    return w_shape[0] == groups and w_shape[3] == 1


def _depthwise_taps(filters):
    """Returns filters (K, R, S, 1) as (R, S, K)."""
    return np.ascontiguousarray(filters[..., 0].transpose(1, 2, 0))


def _times_tap(filters, groups):
    """Returns a function that writes the product of (n, OH, OW, K) and an element (r, s) of the filter to an array."""
    k, _, _, c = filters.shape
    if _is_depthwise(filters.shape, groups):
        taps = _depthwise_taps(filters)
        return lambda gradient, tap, out: np.multiply(gradient, taps[tap], out=out)

    def multiply(gradient, tap, out):
        rows = filters[:, tap[0], tap[1]].reshape(groups, k // groups, c)
        np.matmul(_by_group(gradient, groups), rows, out=_by_group(out, groups))

    return multiply


def _by_group(array, groups):
    """Returns an array (..., K) as a view (groups, rows, K / groups)."""
    channels = array.shape[-1]
    return array.reshape(array.size // channels, groups, channels // groups).transpose(1, 0, 2)


def _room(target, dtype):
    """Returns the target of a result, or an array in ``dtype`` whose contents will be rounded or copied to it."""
    if target.dtype == dtype and target.flags.c_contiguous:
        return target
    return np.empty(target.shape, dtype)


def _store(wide, target):
    """Rounds the contents of :func:`_room` to its target."""
    if wide is target:
        return
    if target.flags.c_contiguous:
        narrow_to(wide, target)
    else:
        rounded = np.empty(target.shape, target.dtype)
        narrow_to(wide, rounded)
        target[...] = rounded


def _add_sums(y, sums):
    """Adds the sum of each column of y (M, K), and the sum of its squares, to (2, K) float64."""
    for start in range(0, len(y), _SUMMED):
        rows = y[start : start + _SUMMED]
        sums[0] += rows.sum(0)
        sums[1] += np.einsum("mk,mk->k", rows, rows)


# Patches under a filter as rows of a matrix ("im2col"), and limits of their memory


def is_pointwise(filter_size, convolution):
    """Whether every window is one pixel of the input."""
    return filter_size == (1, 1) and convolution.pad == (0, 0)


def parts_of(count, rows, row_size):
    """Yields (slice of images, slice of rows) whose sizes stay below :data:`LIMIT`, in order.

    Args:
        count: number of images.
        rows: number of rows of each.
        row_size: number of float32 elements of a row. A part has at least one row.
    """
    most = max(1, LIMIT // max(1, 4 * row_size))  # rows
    images, some = max(1, most // max(1, rows)), max(1, min(most, rows))
    for image in range(0, count, images):
        for row in range(0, rows, some):
            yield slice(image, min(count, image + images)), slice(row, min(rows, row + some))


def windows_of(x, filter_size, convolution, out_shape):
    """Yields the patches under the filter, for a few images, or a few rows of one image, at a time.

    Args:
        x: (N, H, W, C) in the storage dtype.
        filter_size: (R, S).
        convolution: :class:`~mixprec.backends.geometry.Convolution`.
        out_shape: (OH, OW, K) of the output; its channels take memory, too.

    Yields:
        ``((images, rows), windows)``: two slices of the output, and a view (n, rows, OW, R, S, C) in float32.
    """
    (r, s), (dh, dw) = filter_size, convolution.dilation
    (oh, ow, outputs), (sh, sw) = out_shape, convolution.stride
    if is_pointwise(filter_size, convolution):
        x, sh, sw = x[:, ::sh, ::sw], 1, 1
    channels, span = x.shape[3], (r - 1) * dh + 1
    for images, rows in parts_of(len(x), oh, ow * (r * s * channels + outputs)):
        seen = slice(rows.start * sh, (rows.stop - 1) * sh + span)
        part = widen(_padded(x[images], convolution.pad, seen))
        n, h, w, c = part.strides
        shape = (len(part), rows.stop - rows.start, ow, r, s, channels)
        yield (images, rows), as_strided(part, shape, (n, h * sh, w * sw, h * dh, w * dw, c))


def columns_of(windows, groups):
    """Returns windows (n, rows, OW, R, S, C) as (groups, n * rows * OW, R * S * C / groups); a view if possible."""
    n, rows, ow, r, s, channels = windows.shape
    split = windows.reshape(n, rows, ow, r, s, groups, channels // groups)
    return split.transpose(5, 0, 1, 2, 3, 4, 6).reshape(groups, n * rows * ow, r * s * (channels // groups))


def taps_of(size, out_size, filter_size, convolution):
    """Yields for each element of the filter the outputs and inputs that it connects, without padding.

    Args:
        size: (H, W).
        out_size: (OH, OW).
        filter_size: (R, S).
        convolution: :class:`~mixprec.backends.geometry.Convolution`.

    Yields:
        ``((r, s), outputs, inputs)``: the element, and two indices of the same extent for arrays (N, OH, OW, ...) and
        (N, H, W, ...).
    """
    (sh, sw), (ph, pw), (dh, dw) = convolution.stride, convolution.pad, convolution.dilation
    for r in range(filter_size[0]):
        out_rows, in_rows = _reach(size[0], out_size[0], sh, r * dh - ph)
        for s in range(filter_size[1]):
            out_columns, in_columns = _reach(size[1], out_size[1], sw, s * dw - pw)
            yield (r, s), (slice(None), out_rows, out_columns), (slice(None), in_rows, in_columns)


def _reach(size, out_size, stride, offset):
    """Returns the slice of outputs i for which an input i * stride + offset exists, and the slice of those inputs."""
    first = max(0, -(offset // stride))
    count = max(0, min(out_size, (size - 1 - offset) // stride + 1) - first)
    start = first * stride + offset
    if not count:
        return slice(0, 0), slice(0, 0)
    return slice(first, first + count), slice(start, start + (count - 1) * stride + 1, stride)


def _padded(x, pad, rows):
    """Returns a slice of the rows of x (N, H, W, C) with zeros on every side; rows are counted from the padding on."""
    if pad == (0, 0):
        return x[:, rows]
    (ph, pw), (n, h, w, c) = pad, x.shape
    padded = np.zeros((n, rows.stop - rows.start, w + 2 * pw, c), x.dtype)
    top = max(rows.start, ph)
    bottom = max(top, min(rows.stop, ph + h))
    padded[:, top - rows.start : bottom - rows.start, pw : pw + w] = x[:, top - ph : bottom - ph]
    return padded
