"""Batch normalization on CUDA: by cuDNN where it has an engine, by own kernels otherwise, or where these are faster."""

import functools
import math

import numpy as np

from mixprec.backends.cuda import operations
from mixprec.backends.cuda.base import ceil_div, rows_of
from mixprec.backends.cuda.ways import Ways
from mixprec.backends.primitives import Affine, Saved

# What is not proven of cuDNN. A mask seems to take one bit of each element; running variances seem to be unbiased.
CUDNN_MASK_DTYPE = np.dtype(np.bool_)  # memory for one element of a mask; a mask of the own kernels is uint8
CUDNN_VARIANCE_IS_UNBIASED = True

_FILE = "batch_norm"
_FLOAT = np.dtype(np.float32)
_BITS = np.dtype(np.uint8)
_INVSTD, _VARIANCE, _AFFINE = range(3)  # Spread in batch_norm.cu
_ALWAYS, _RECOMPUTED, _IN_BITS, _BY_OUTPUT = range(4)  # Opening in batch_norm.cu
_GROUP = 8  # channels of a thread
_COMBINED = 8  # channels for a block that combines parts
_MAX_LANES = 32  # groups beside each other in a block: 512 bytes of a row
_ROWS_OF_THREAD = 8  # at least, before rows are split
_BLOCKS = 1024


class BatchNorms(Ways):
    """The batch normalizations of :class:`~mixprec.backends.primitives.Primitives`."""

    def batch_norm(self, x, gamma, beta, running, attributes, *, add=None, sums=None):
        if sums is not None:
            saved = self._finish_sums(sums, rows_of(x)[0], None, running, attributes)[1]
            return self._apply_batch(x, gamma, beta, saved, attributes, add)
        key = "batch_norm", x.shape, x.dtype, attributes, add is not None
        way = self._way(key, self._forward_ways, (x, gamma, beta, None, add))
        return way(x, gamma, beta, running, add)

    def batch_norm_backward(self, dy, x, gamma, beta, saved, attributes, *, add=False, plus=None):
        if plus is not None:
            dy = self.add(dy, plus)
        mask = None if saved.mask is None else saved.mask.dtype
        key = "batch_norm_backward", x.shape, x.dtype, attributes.relu, add, mask
        way = self._way(key, self._backward_ways, (dy, x, gamma, beta, saved))
        return way(dy, x, gamma, beta, saved)

    def batch_norm_inference(self, x, gamma, beta, mean, variance, attributes, *, add=None):
        return self._apply(x, (gamma, beta, mean, variance), _VARIANCE, attributes.eps, attributes.relu, add)

    def batch_norm_inference_backward(self, dy, x, gamma, beta, mean, variance, attributes, *, y=None):
        opening = _ALWAYS if not attributes.relu else _RECOMPUTED if y is None else _BY_OUTPUT
        opened = y if opening == _BY_OUTPUT else None
        dx, dgamma, dbeta, dadd = self._gradients(
            dy, x, (gamma, beta, mean, variance), _VARIANCE, attributes.eps, opening, opened
        )
        return dx, dgamma, dbeta, dadd if opened is not None or y is None else dy

    def batch_norm_affine(self, sums, count, gamma, beta, running, attributes):
        return self._finish_sums(sums, count, (gamma, beta), running, attributes)

    # The ways

    def _forward_ways(self, shape, dtype, attributes, add):
        cudnn = self._cudnn()
        ways = []
        masked = add and attributes.relu
        operation = operations.batch_norm(shape, dtype, attributes, add=add)
        backward = operations.batch_norm_backward(shape, dtype, mask=True)
        # A single row has no unbiased variance. And cuDNN's mask can be read by cuDNN only.
        if math.prod(shape[:-1]) > 1 and cudnn.supports(operation) and (not masked or cudnn.supports(backward)):
            forward = self._forward_by_cudnn
            ways.append(("cudnn", functools.partial(forward, cudnn.plan(operation), attributes, masked)))
        ways.append(("kernels", functools.partial(self._forward_by_kernels, attributes)))
        return ways

    def _backward_ways(self, shape, dtype, relu, add, mask):
        cudnn = self._cudnn()
        ways = []
        if mask != _BITS:
            operation = operations.batch_norm_backward(shape, dtype, recompute=relu and not add, mask=mask is not None)
            if mask is not None or (math.prod(shape[:-1]) > 1 and cudnn.supports(operation)):
                ways.append(("cudnn", functools.partial(self._backward_by_cudnn, cudnn.plan(operation), relu, add)))
        if mask is None or mask == _BITS:
            ways.append(("kernels", functools.partial(self._backward_by_kernels, relu, add)))
        return ways

    def _forward_by_cudnn(self, plan, attributes, masked, x, gamma, beta, running, add):
        y, mean, invstd = self._empty(x.shape, x.dtype), self._per_channel(gamma), self._per_channel(gamma)
        moves = running is not None and CUDNN_VARIANCE_IS_UNBIASED
        moved = running if moves else (self._per_channel(gamma), self._per_channel(gamma))
        inputs = [x, gamma, beta, *moved] + [add] * (add is not None)
        outputs = [y, mean, invstd, *moved]
        mask = self._empty(x.shape, CUDNN_MASK_DTYPE) if masked else None
        outputs += [mask] * masked
        plan.run(*map(self._address, inputs), *map(self._address, outputs))
        if running is not None and not moves:
            rows, channels = rows_of(x)
            self._run_channels(
                "batch_norm_move_running",
                [*map(self._address, (mean, invstd)), rows, channels, *map(self._address, running)],
                attributes,
                channels,
            )
        return y, Saved(mean, invstd, mask)

    def _backward_by_cudnn(self, plan, relu, add, dy, x, gamma, beta, saved):
        dx, dgamma, dbeta = self._empty(x.shape, x.dtype), self._per_channel(gamma), self._per_channel(gamma)
        inputs, outputs = [dy, x, gamma, saved.mean, saved.invstd], [dx, dgamma, dbeta]
        dadd = dy if add else None
        if relu and add:
            dadd = self._empty(x.shape, x.dtype)
            inputs.append(saved.mask)
            outputs.append(dadd)
        elif relu:
            inputs.append(beta)
        plan.run(*map(self._address, inputs), *map(self._address, outputs))
        return dx, dgamma, dbeta, dadd

    def _forward_by_kernels(self, attributes, x, gamma, beta, running, add):
        mean, invstd = self._per_channel(gamma), self._per_channel(gamma)
        self._statistics(x, attributes, mean=mean, invstd=invstd, running=running)
        return self._apply_batch(x, gamma, beta, Saved(mean, invstd), attributes, add)

    def _backward_by_kernels(self, relu, add, dy, x, gamma, beta, saved):
        opening = _ALWAYS if not relu else _IN_BITS if add else _RECOMPUTED
        parameters = gamma, beta, saved.mean, saved.invstd
        dx, dgamma, dbeta, dadd = self._gradients(dy, x, parameters, _INVSTD, 0.0, opening, saved.mask)
        return dx, dgamma, dbeta, dy if add and not relu else dadd

    # The kernels

    def _sums(self, x):
        """Returns the sums (2, C) float32 of channels and of their squares."""
        sums = self._empty((2, x.shape[-1]), _FLOAT)
        self._statistics(x, None, sums=sums)
        return sums

    def _scale_bias(self, x, scale, bias, relu):
        """Returns ``relu(scale * x + bias)``; ``scale`` (C,) float32 or ``None`` for 1, ``bias`` likewise for 0."""
        return self._apply(x, (scale, bias, None, None), _AFFINE, 0.0, relu, None)

    def _statistics(self, x, attributes, mean=None, invstd=None, running=None, sums=None):
        rows, channels = rows_of(x)
        if not rows:
            raise ValueError(f"an empty batch has no statistics: batch normalization of an array of shape {x.shape}")
        geometry = _geometry(rows, channels, self.launcher.threads)
        partial = self._empty((geometry.parts, 2, channels), _FLOAT)
        address = self._address(x)
        self._run_rows("batch_norm_statistics", x, [address], [self._address(partial)], [address])
        decay, eps = (0.0, 0.0) if attributes is None else (float(attributes.decay), float(attributes.eps))
        arguments = [self._address(partial), geometry.parts, geometry.part_rows, rows, channels]
        arguments += map(self._address_or_0, (mean, invstd, *(running or (None, None))))
        arguments += [decay, eps, self._address_or_0(sums)]
        self.kernels.launch(_FILE, "batch_norm_finalize", ceil_div(channels, _COMBINED), arguments, _FLOAT)

    def _finish_sums(self, sums, count, parameters, running, attributes):
        """Returns :class:`Affine`, or ``None`` if there are no ``parameters``, gamma and beta; and :class:`Saved`."""
        channels = sums.shape[1]
        mean, invstd = (self._empty((channels,), _FLOAT) for _ in range(2))
        affine = None if parameters is None else Affine(*(self._empty((channels,), _FLOAT) for _ in range(2)))
        arrays = *(parameters or (None, None)), mean, invstd, *(affine or (None, None)), *(running or (None, None))
        arguments = [self._address(sums), count, channels, *map(self._address_or_0, arrays)]
        self._run_channels("batch_norm_finalize_sums", arguments, attributes, channels)
        return affine, Saved(mean, invstd)

    def _apply_batch(self, x, gamma, beta, saved, attributes, add):
        mask = None
        if attributes.relu and add is not None:
            rows, channels = rows_of(x)
            mask = self._empty((rows, ceil_div(channels, _GROUP)), _BITS)
        parameters = gamma, beta, saved.mean, saved.invstd
        return self._apply(x, parameters, _INVSTD, 0.0, attributes.relu, add, mask), saved._replace(mask=mask)

    def _apply(self, x, parameters, spread, eps, relu, add, mask=None):
        """Returns ``relu(scale * x + bias + add)``.

        Args:
            x: (..., C).
            parameters: gamma, beta, mean, and invstd or variance.
            spread: which of both, or that gamma and beta are scale and bias.
            eps: added to a variance.
            relu: whether there is a ReLU.
            add: ``None`` or like ``x``.
            mask: ``None``, or where to write in which places the ReLU was open.
        """
        y = self._empty(x.shape, x.dtype)
        dense = [self._address(x), self._address_or_0(add), self._address(y)]
        how = [*map(self._address_or_0, parameters), spread, float(eps), int(relu)]
        self._run_rows("batch_norm_apply", x, [*dense, self._address_or_0(mask)], how, dense)
        return y

    def _gradients(self, dy, x, parameters, spread, eps, opening, opened):
        """Returns dx, dgamma, dbeta, and the gradient behind the ReLU if that was after an addition.

        Args:
            dy: (..., C).
            x: like ``dy``.
            parameters: as of :meth:`_apply`.
            spread: as there; with a variance the statistics are constants.
            eps: as there.
            opening: how to know where the ReLU was open.
            opened: the array with that, or ``None``.
        """
        gamma = parameters[0]
        rows, channels = rows_of(x)
        parts = _geometry(rows, channels, self.launcher.threads).parts
        partial = self._empty((parts, 2, channels), _FLOAT)
        dgamma, dbeta = self._per_channel(gamma), self._per_channel(gamma)
        slope = offset = None
        if spread == _INVSTD:
            slope, offset = self._per_channel(gamma), self._per_channel(gamma)
        dx = self._empty(x.shape, x.dtype)
        dadd = self._empty(x.shape, x.dtype) if opening in (_IN_BITS, _BY_OUTPUT) else None

        how = [*map(self._address, parameters), spread, float(eps)]
        inputs = [self._address(dy), self._address(x), self._address_or_0(opened), opening]
        outputs = [self._address(dx), self._address_or_0(dadd)]
        dense = [*inputs[:2], *outputs] + [inputs[2]] * (opening == _BY_OUTPUT)
        self._run_rows("batch_norm_backward_sums", x, inputs, [*how, self._address(partial)], dense)
        arguments = [self._address(partial), parts, rows, channels, how[0], *how[3:]]
        arguments += map(self._address_or_0, (dgamma, dbeta, slope, offset))
        self.kernels.launch(_FILE, "batch_norm_backward_finalize", ceil_div(channels, _COMBINED), arguments, _FLOAT)
        how += map(self._address_or_0, (slope, offset))
        self._run_rows("batch_norm_backward_apply", x, [*inputs, *outputs], how, dense)
        return dx, dgamma, dbeta, dadd

    def _run_rows(self, name, x, before, after, dense):
        """Launches a kernel over all rows.

        Args:
            name: of the kernel.
            x: gives shape and dtype.
            before: the first arguments, before those that say which rows and channels a thread has.
            after: the last arguments.
            dense: addresses of the arrays like ``x``.
        """
        rows, channels = rows_of(x)
        geometry = _geometry(rows, channels, self.launcher.threads)
        aligned = channels % _GROUP == 0 and not any(address % 16 for address in dense)
        arguments = [*before, rows, channels, geometry.lanes, geometry.part_rows, *after]
        self.kernels.launch(_FILE, name, geometry.blocks, arguments, x.dtype, width=_GROUP if aligned else 1)

    def _run_channels(self, name, arguments, attributes, channels):
        """Launches a kernel with a thread for each channel; its last arguments are decay and eps."""
        arguments += [float(attributes.decay), float(attributes.eps)]
        self.kernels.launch(_FILE, name, ceil_div(channels, self.launcher.threads), arguments, _FLOAT)

    def _per_channel(self, like):
        return self._empty(like.shape, _FLOAT)


class _Geometry:
    """How rows and channels are given to blocks, the same on every GPU.

    Attributes:
        lanes: groups of channels beside each other in a block, a power of two.
        parts: number of parts that the rows are split into.
        part_rows: rows of each part but the last.
        blocks: number of blocks.
    """

    def __init__(self, rows, channels, threads):
        groups = ceil_div(channels, _GROUP)
        self.lanes = min(_MAX_LANES, 1 << (groups - 1).bit_length())
        tiles = ceil_div(groups, self.lanes)
        parts = max(1, min(ceil_div(rows * self.lanes, threads * _ROWS_OF_THREAD), _BLOCKS // tiles))
        self.part_rows = max(1, ceil_div(rows, parts))
        self.parts = ceil_div(rows, self.part_rows)
        self.blocks = self.parts * tiles


@functools.lru_cache(maxsize=1024)
def _geometry(rows, channels, threads):
    return _Geometry(rows, channels, threads)
