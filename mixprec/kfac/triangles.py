"""Packs symmetric matrices as lower triangles, for snapshots and for sums over ranks; upper triangles are ignored.

A triangle becomes a rectangle: the longer half of its rows, the longest first, with the shorter ones appended,
reversed. For matrices of 4 and of 5 rows, with the number of the row of each element:

    3 3 3 3 0        4 4 4 4 4
    2 2 2 1 1        3 3 3 3 0
                     2 2 2 1 1

This uses copies of views and masks, which a CUDA graph may contain. Indices of elements would have to be uploaded.
"""

from chainer.backend import get_array_module


def packed(array):
    """Returns the lower triangles of matrices (groups, D, D), D (D + 1) / 2 numbers each; other arrays as they are."""
    if array.ndim != 3:
        return array
    xp = get_array_module(array)
    found = xp.empty_like(array, shape=_shape(array))
    (longer, shorter), (first, second) = _halves(array), _in_rectangles(found, array.shape[1])
    first[...] = longer
    xp.copyto(second, shorter, where=_lower(array[:, : shorter.shape[1]])[:, ::-1])
    return found


def unpack(values, out):
    """Writes values from :func:`packed`, in any shape, to an array (groups, D, D), or of the original shape."""
    if out.ndim != 3:
        out[...] = values.reshape(out.shape)
        return
    (longer, shorter), (first, second) = _halves(out), _in_rectangles(values.reshape(_shape(out)), out.shape[1])
    longer[...] = first
    shorter[...] = second
    out[...] = get_array_module(out).where(_lower(out), out, out.transpose(0, 2, 1))


def size_of(array):
    """Returns the number of elements of the packed array."""
    return len(array) * array.shape[1] * (array.shape[1] + 1) // 2 if array.ndim == 3 else array.size


def _shape(array):
    """Returns the shape of the rectangles for matrices (groups, D, D)."""
    groups, size, _ = array.shape
    return groups, (size + 1) // 2, size | 1


def _halves(array):
    """Returns views of the longer rows of matrices, the last first, and of the shorter rows, reversed."""
    shorter = array.shape[1] // 2
    return array[:, shorter:][:, ::-1], array[:, :shorter, ::-1]


def _in_rectangles(rectangles, size):
    """Returns views of these rows in the rectangles, including parts outside of the triangle (other rows)."""
    return rectangles[:, :, :size], rectangles[:, size % 2 :, -size:]


def _lower(array):
    """Returns a mask (rows, D) of the lower triangle of arrays (groups, rows, D)."""
    xp = get_array_module(array)
    return xp.tril(xp.ones_like(array[0], dtype=bool))
