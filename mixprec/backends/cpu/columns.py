"""What a filter sees at its positions, as rows of a matrix ("im2col"), and bounds on the memory for that."""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mixprec.backends.cpu.storage import widen

# Bytes of float32 for the columns of one part and what is computed from them. They should stay in a processor's
# third-level cache, and be enough for the product of matrices to reach its speed: from 4 to 64 MiB differ by 6 %.
LIMIT = 8 << 20


def is_pointwise(filter_size, convolution):
    """Whether every window is one pixel of the input."""
    return filter_size == (1, 1) and convolution.pad == (0, 0)


def parts_of(count, rows, row_size):
    """Yields (slice of images, slice of rows) whose sizes stay below :data:`LIMIT`, in order.

    Args:
        count: number of images.
        rows: number of rows of each.
        row_size: number of float32 elements that a row takes. A part has one row at least.
    """
    most = max(1, LIMIT // max(1, 4 * row_size))  # rows
    images, some = max(1, most // max(1, rows)), max(1, min(most, rows))
    for image in range(0, count, images):
        for row in range(0, rows, some):
            yield slice(image, min(count, image + images)), slice(row, min(rows, row + some))


def windows_of(x, filter_size, convolution, outputs):
    """Yields what the filter sees at each of its positions, a few images, or a few rows of one image, at a time.

    Args:
        x: (N, H, W, C) in the storage dtype.
        filter_size: (R, S).
        convolution: :class:`~mixprec.backends.geometry.Convolution`.
        outputs: number of channels of the output, which take memory, too.

    Yields:
        ``((images, rows), windows)``: two slices of the output, and a view (n, rows, OW, R, S, C) in float32.
    """
    (r, s), (dh, dw) = filter_size, convolution.dilation
    oh, ow = convolution.out_size(x.shape[1:3], filter_size)
    sh, sw = convolution.stride
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
    """Returns windows (n, rows, OW, R, S, C) as (groups, n * rows * OW, R * S * C / groups); a view if that can be."""
    n, rows, ow, r, s, channels = windows.shape
    split = windows.reshape(n, rows, ow, r, s, groups, channels // groups)
    return split.transpose(5, 0, 1, 2, 3, 4, 6).reshape(groups, n * rows * ow, r * s * (channels // groups))


def taps_of(size, out_size, filter_size, convolution):
    """Yields for each element of the filter which outputs it joins with which inputs, where those are not padding.

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
    """Returns a slice of the rows of x (N, H, W, C) with zeros on every side; they are counted from the padding on."""
    if pad == (0, 0):
        return x[:, rows]
    (ph, pw), (n, h, w, c) = pad, x.shape
    padded = np.zeros((n, rows.stop - rows.start, w + 2 * pw, c), x.dtype)
    top = max(rows.start, ph)
    bottom = max(top, min(rows.stop, ph + h))
    padded[:, top - rows.start : bottom - rows.start, pw : pw + w] = x[:, top - ph : bottom - ph]
    return padded
