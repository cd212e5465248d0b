"""Batch normalization on NumPy: statistics in one pass over the input, the output in another."""

import functools
from typing import Any, NamedTuple

import numpy as np

from mixprec.backends.cpu.blocks import Rows, read, target, write
from mixprec.backends.cpu.elementwise import is_positive
from mixprec.backends.geometry import Saved

_ZERO = np.float32(0)
# Overflows give inf or NaN without a warning, as on a device: the loss scale watches for them.
quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")


class Affine(NamedTuple):
    """``scale * x + bias`` per channel: a batch normalization whose statistics are known.

    Attributes:
        scale: (C,) float32, gamma * invstd.
        bias: (C,) float32, beta - mean * scale.
    """

    scale: Any
    bias: Any


class BatchNorms:
    """The batch normalizations of :class:`~mixprec.backends.primitives.Primitives`."""

    @quiet
    def batch_norm(self, x, gamma, beta, running, attributes, *, add=None, sums=None, ranks=None, factors=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.batch_norm`."""
        affine, saved = self._statistics(x, gamma, beta, running, attributes, sums, ranks)
        apply = self.apply_affine if factors is None else functools.partial(self._apply_to_images, factors)
        y, mask = apply(x, affine, attributes.relu, add, keep_mask=True)
        return y, saved if mask is None else saved._replace(mask=mask)

    def _statistics(self, x, gamma, beta, running, attributes, sums=None, ranks=None):
        """Moves the running statistics; returns :class:`Affine` and Saved."""
        count = _count(x)
        if ranks is not None:
            mean, variance, count = _moments_of_all(ranks.statistics(self, x))
        else:
            mean, variance = self._moments(x) if sums is None else _moments_of_sums(sums, count)
        affine, saved = _finish(mean, variance, count, gamma, beta, running, attributes)
        return affine, saved if ranks is None else saved._replace(count=count)

    @quiet
    def batch_norm_part(self, x):
        """See :meth:`~mixprec.backends.primitives.Primitives.batch_norm_part`."""
        if not x.size:
            return np.zeros((3, x.shape[-1]))  # for all processes to see
        count = _count(x)
        mean, variance = self._moments(x)
        return np.stack([np.full_like(mean, count), mean, variance])

    @quiet
    def batch_norm_backward(
        self, dy, x, gamma, beta, saved, attributes, *, add=False, plus=None, ranks=None, factors=None
    ):
        """See :meth:`~mixprec.backends.primitives.Primitives.batch_norm_backward`."""
        affine = _affine(gamma, beta, saved.mean, saved.invstd)
        count, processes = _count(x), 1
        of_images = factors is not None
        reduce = functools.partial(self._reduce_images, factors) if of_images else self._reduce
        g, dgamma, dbeta = reduce(dy, plus, x, saved.mean, affine, attributes.relu, add, saved.mask)
        dgamma *= saved.invstd
        if ranks is not None:
            dgamma, dbeta = ranks.sum(np.stack([dgamma, dbeta]))
            count, processes = saved.count, ranks.size
        slope, offset = slopes(affine.scale, saved, dgamma, dbeta, count)
        combine = functools.partial(self._combine_images, factors) if of_images else self._combine
        dx = combine(g, affine.scale, x, saved.mean, slope, offset, reuse=attributes.relu and not add)
        if processes > 1:
            dgamma, dbeta = dgamma / processes, dbeta / processes
        return dx, dgamma.astype(np.float32), dbeta.astype(np.float32), g if add else None

    @quiet
    def batch_norm_inference(self, x, gamma, beta, mean, variance, attributes, *, add=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.batch_norm_inference`."""
        affine = _affine(gamma, beta, mean, _invstd(variance, attributes))
        return self.apply_affine(x, affine, attributes.relu, add)[0]

    @quiet
    def batch_norm_inference_backward(self, dy, x, gamma, beta, mean, variance, attributes, *, y=None):
        """See :meth:`~mixprec.backends.primitives.Primitives.batch_norm_inference_backward`."""
        invstd = _invstd(variance, attributes)
        affine = _affine(gamma, beta, mean, invstd)
        mask = is_positive(y) if y is not None and attributes.relu else None
        g, dgamma, dbeta = self._reduce(dy, None, x, mean, affine, attributes.relu, y is not None, mask)
        dgamma *= invstd
        dx = self._scaled(g, x, affine.scale)
        return dx, dgamma.astype(np.float32), dbeta.astype(np.float32), None if y is None else g

    # With factors image by image: one multiplies scale and bias, and sums

    def _apply_to_images(self, factors, x, affine, relu, add, keep_mask):
        y, mask = _new_output(x, relu and keep_mask)
        for n, factor in enumerate(factors):
            scaled = Affine(affine.scale * factor, affine.bias * factor)
            out = y[n], None if mask is None else mask[n]
            self.apply_affine(x[n], scaled, relu, add[n], keep_mask, out)
        return y, mask

    def _reduce_images(self, factors, dy, plus, x, mean, affine, relu, add, mask):
        dy = dy if plus is None else self.add(dy, plus)
        g = np.empty(dy.shape, dy.dtype) if relu else dy
        dgamma, dbeta = np.zeros((2, x.shape[-1]))
        for n, factor in enumerate(factors.astype(np.float64)):
            opened = None if mask is None else mask[n]
            _, products, sums = self._reduce(dy[n], None, x[n], mean, affine, relu, add, opened, out=g[n])
            dgamma += factor * products
            dbeta += factor * sums
        return g, dgamma, dbeta

    def _combine_images(self, factors, g, scale, x, mean, slope, offset, reuse):
        dx = np.empty(x.shape, x.dtype)
        for n, factor in enumerate(factors):
            self._combine(g[n], scale * factor, x[n], mean, slope, offset, False, out=dx[n])
        return dx

    # The pieces, which the native library replaces in mixprec.backends.cpu.native_batch_norm. Each writes into `out` if
    # it is given.

    def _moments(self, x):
        """Returns mean and biased variance of each channel, (C,) float64.

        Deviations from a centre are summed in float32 within a block and in float64 beyond it. The centre of a block is
        the mean of the block before: if a block is further from it than its own spread, that distance is part of the
        variance. Differently centred sums are combined as by Chan, Golub and LeVeque (1983,
        doi:10.1080/00031305.1983.10483115).
        """
        rows = Rows(x.shape)
        flat, scratch, deviations = x.reshape(-1), rows.scratch(), rows.scratch()
        count, mean, squares = 0, 0.0, 0.0
        centre = None
        for part in rows.blocks():
            block = read(flat, part, scratch)
            size = block.size // rows.channels
            if centre is None:
                centre = rows.sum(block) / np.float32(size)
            deviation = deviations[: block.size]
            np.subtract(rows.matrix(block), centre, out=rows.matrix(deviation))
            shift = rows.sum(deviation).astype(np.float64) / size
            np.multiply(deviation, deviation, out=deviation)
            block_mean = centre + shift
            distance = block_mean - mean
            squares = squares + rows.sum(deviation) - size * shift**2 + distance**2 * (count * size / (count + size))
            count += size
            mean = mean + distance * (size / count)
            centre = block_mean.astype(np.float32)
        return mean, np.maximum(squares / count, 0)

    # A ReLU is open where its input is above 0 before it is rounded. Without an addition that is computed again in the
    # backward pass, in the same steps: scale * x, then + bias, each rounded to float32.

    def apply_affine(self, x, affine, relu, add=None, keep_mask=False, out=None):
        """Returns ``relu(scale * x + bias + add)``, and on request a mask of the ReLU after an addition."""
        rows = Rows(x.shape)
        y, mask = out or _new_output(x, relu and add is not None and keep_mask)
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        scale, bias = map(rows.repeat, affine)
        x_scratch, add_scratch, zeros = rows.scratch(), rows.scratch(), np.zeros_like(scale)
        for part in rows.blocks():
            block, result = read(flat_x, part, x_scratch), target(flat_y, part, x_scratch)
            np.multiply(block, scale[: block.size], out=result)
            np.add(result, bias[: block.size], out=result)
            if add is not None:
                np.add(result, read(add.reshape(-1), part, add_scratch), out=result)
            if mask is not None:
                np.greater(result, _ZERO, out=mask.reshape(-1)[part])
            if relu:  # zeros as an array: NumPy does not vectorize a maximum with a number
                np.maximum(result, zeros[: block.size], out=result)
            write(flat_y, part, result)
        return y, mask

    def _reduce(self, dy, plus, x, mean, affine, relu, add, mask, out=None):
        """Returns ``dy + plus`` after the ReLU, the sum of its products with ``x - mean``, and its own sum.

        The first is an array with an addition, ``dy`` itself without ReLU and ``plus``; otherwise in a backend-specific
        form for :meth:`_combine` and :meth:`_scaled`. Sums are (C,) float64.
        """
        if plus is not None:
            dy = self.add(dy, plus)
        rows = Rows(x.shape)
        g = dy if not relu else np.empty(dy.shape, dy.dtype) if out is None else out
        flat_x, flat_dy, flat_g = x.reshape(-1), dy.reshape(-1), g.reshape(-1)
        bits = np.dtype(f"i{dy.dtype.itemsize}")
        scale, bias = map(rows.repeat, affine)
        means = rows.repeat(mean)
        x_scratch, g_scratch, products = rows.scratch(), rows.scratch(), rows.scratch()
        opened, closed = rows.scratch(bool), rows.scratch(bits)
        products_sum, g_sum = np.zeros((2, rows.channels))
        for part in rows.blocks():
            block = read(flat_x, part, x_scratch)
            product = products[: block.size]
            if relu:
                if add:
                    now = mask.reshape(-1)[part]
                else:
                    np.multiply(block, scale[: block.size], out=product)
                    np.add(product, bias[: block.size], out=product)
                    now = opened[: block.size]
                    np.greater(product, _ZERO, out=now)
                keep = closed[: block.size]
                np.negative(now.view(np.int8), out=keep)
                np.bitwise_and(flat_dy[part].view(bits), keep, out=flat_g[part].view(bits))
            gradient = read(flat_g, part, g_scratch)
            np.subtract(block, means[: block.size], out=product)
            np.multiply(product, gradient, out=product)
            products_sum += rows.sum(product)
            g_sum += rows.sum(gradient)
        return g, products_sum, g_sum

    def _combine(self, g, scale, x, mean, slope, offset, reuse, out=None):
        """Returns ``scale * g + slope * (x - mean) + offset``, in the memory of ``g`` if ``reuse``."""
        rows = Rows(x.shape)
        dx = out if out is not None else g if reuse else np.empty(x.shape, x.dtype)
        flat_g, flat_x, flat_dx = g.reshape(-1), x.reshape(-1), dx.reshape(-1)
        scale, mean, slope, offset = map(rows.repeat, (scale, mean, slope, offset))
        x_scratch, g_scratch = rows.scratch(), rows.scratch()
        deviations = rows.scratch()
        for part in rows.blocks():
            block, gradient = read(flat_x, part, x_scratch), read(flat_g, part, g_scratch)
            result, deviation = target(flat_dx, part, g_scratch), deviations[: block.size]
            np.subtract(block, mean[: block.size], out=deviation)
            np.multiply(deviation, slope[: block.size], out=deviation)
            np.add(deviation, offset[: block.size], out=deviation)
            np.multiply(gradient, scale[: block.size], out=result)
            np.add(result, deviation, out=result)
            write(flat_dx, part, result)
        return dx

    def _scaled(self, g, x, scale):
        """Returns ``scale * g``."""
        rows = Rows(g.shape)
        scale = rows.repeat(scale)
        return rows.mapped(g, lambda block, out: np.multiply(block, scale[: block.size], out=out))


def slopes(scale, saved, dgamma, dbeta, count):
    """Returns slope and offset for ``_combine``: the dependence of the gradient on x through the statistics."""
    # With xhat = (x - mean) * invstd: dx = gamma * invstd * (g - dbeta / m - xhat * dgamma / m)
    return scale * saved.invstd * (dgamma / -count), scale * (dbeta / -count)


def _new_output(x, masked):
    """Returns an uninitialized array like ``x``, and one for a mask of it, or ``None``."""
    return np.empty(x.shape, x.dtype), np.empty(x.shape, bool) if masked else None


def _count(x):
    count = x.size // x.shape[-1]
    if count == 0:
        raise ValueError(f"an empty batch has no statistics: batch normalization of an array of shape {x.shape}")
    return count


def _moments_of_sums(sums, count):
    """Returns mean and biased variance of each channel, (C,) float64, from sums and sums of squares."""
    mean, square = sums.astype(np.float64) / count
    return mean, np.maximum(square - mean**2, 0)


def _moments_of_all(parts):
    """Returns mean and biased variance of each channel, (C,) float64, and the count, over the batches of all processes.

    Means and variances are combined like blocks in :meth:`BatchNorms._moments`, as a difference of sums of squares
    would cancel where the mean is far from 0. Every process uses the same order and gets the same bits.
    """
    counts, means, variances = parts.swapaxes(0, 1)
    total = counts.sum(axis=0)
    mean = (counts * means).sum(axis=0) / total
    return mean, (counts * (variances + (means - mean) ** 2)).sum(axis=0) / total, total[0]


def _finish(mean, variance, count, gamma, beta, running, attributes):
    """Moves the running statistics; returns :class:`Affine` and :class:`Saved`."""
    invstd = _invstd(variance, attributes)
    mean = mean.astype(np.float32)
    if running is not None:
        rest = 1 - attributes.decay
        unbiased = (variance * (count / max(count - 1, 1))).astype(np.float32)
        for average, value in zip(running, (mean, unbiased), strict=True):
            average *= np.float32(attributes.decay)
            average += np.float32(rest) * value
    return _affine(gamma, beta, mean, invstd), Saved(mean, invstd)


def _invstd(variance, attributes):
    return (1 / np.sqrt(variance.astype(np.float64, copy=False) + attributes.eps)).astype(np.float32)


def _affine(gamma, beta, mean, invstd):
    scale = gamma * invstd
    return Affine(scale, beta - mean * scale)
