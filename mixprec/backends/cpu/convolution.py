"""Convolutions on NumPy: products of matrices of many images at a time, in float32, rounded once."""

import numpy as np

from mixprec.backends.cpu.batch_norm import apply_affine
from mixprec.backends.cpu.columns import columns_of, is_pointwise, parts_of, taps_of, windows_of
from mixprec.backends.cpu.storage import narrow_to, widen
from mixprec.backends.geometry import Following

_SUMMED = 256  # rows whose sums are taken in float32


class Convolutions:
    """The primitives of convolution, see :class:`~mixprec.backends.primitives.Primitives`."""

    @np.errstate(over="ignore", invalid="ignore")
    def conv_fprop(self, x, w, convolution, b=None, *, relu=False, prologue=None, statistics=False):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_fprop`."""
        if isinstance(statistics, Following):  # which takes its own, of what is rounded
            return self.conv_fprop(x, w, convolution, b, relu=relu, prologue=prologue), None
        if prologue is not None:
            x = apply_affine(x, prologue, relu=True)[0]
        (k, r, s, c), groups = w.shape, convolution.groups
        y = np.empty((len(x), *convolution.out_size(x.shape[1:3], (r, s)), k), x.dtype)
        sums = np.zeros((2, k))
        filters, bias = widen(w), None if b is None else widen(b)
        for part, windows in windows_of(x[..., : c * groups], (r, s), convolution, k):
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
    def conv_dgrad(self, dy, w, convolution, x_shape, *, relu_input=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_dgrad`."""
        (k, r, s, c), groups, (n, height, width, _) = w.shape, convolution.groups, x_shape
        (oh, ow), channels = dy.shape[1:3], c * groups
        dx = (np.empty if x_shape[3] == channels else np.zeros)(x_shape, dy.dtype)
        multiply = _times_tap(widen(w), groups)
        # No columns here: one product for each element of the filter, added to where that lies.
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
            if relu_input is not None:
                np.copyto(wide, 0, where=~(widen(relu_input[images])[..., :channels] > 0))
            _store(wide, target)
        return dx

    @np.errstate(over="ignore", invalid="ignore")
    def conv_wgrad(self, x, dy, convolution, w_shape, *, prologue=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.conv_wgrad`."""
        if prologue is not None:
            x = apply_affine(x, prologue, relu=True)[0]
        (k, r, s, c), groups = w_shape, convolution.groups
        total = None
        for part, windows in windows_of(x[..., : c * groups], (r, s), convolution, k):
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
    """Whether each channel has a filter of its own: products of matrices would be too many and too small."""
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
    """Returns the target of a result, or an array in ``dtype`` for what is to be rounded or copied there."""
    if target.dtype == dtype and target.flags.c_contiguous:
        return target
    return np.empty(target.shape, dtype)


def _store(wide, target):
    """Rounds what stands in :func:`_room` to its target."""
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
