"""Batch normalization of arrays (rows, channels) by own kernels: a launch that reads, and one that writes.

Not built: one read backward in place of two, for images of 28x28 and smaller. The multiprocessors of an H100 can keep
26.4 MB in shared memory: x and the gradient of a slice of channels, 64 bytes of each row at 28x28, batch 256. They
would meet at a barrier and write dx from there, in a cooperative launch, in two groups that take turns. That saves
at most 1.9 ms of a ResNet-50's step. It is worth a try if the stage ``segments`` of ``scripts/check_gpu.py`` shows 85 %
of the speed of a whole copy at 64 bytes. At 56x56 the smallest piece that memory gives, 32 bytes, is too much.
"""

import functools
import math

import numpy as np

from mixprec.backends.cuda.base import ceil_div, rows_of
from mixprec.backends.cuda.candidates import Candidates
from mixprec.backends.geometry import Saved

INVSTD, VARIANCE, AFFINE, SUMS = range(4)  # Spread in batch_norm.cuh
ALWAYS, RECOMPUTED, IN_BITS, BY_OUTPUT = range(4)  # how to know where a ReLU was open, see batch_norm_backward.cu

_FLOAT = np.dtype(np.float32)
_BITS = np.dtype(np.uint8)
_GROUP = 8  # channels of a thread
_MAX_LANES = 32  # groups beside each other in a block: 512 bytes of a row
_ROWS_OF_THREAD = 8  # at least, before rows are split
_BLOCKS = 1024
_ENTRIES = 4  # of parts, for each thread of a block that adds up all of them


class BatchNormKernels(Candidates):
    """The kernels of batch normalization, of its multiplication and addition, and of sums of channels."""

    def _sums(self, x):
        """Returns the sums (2, C) float32 of channels and of their squares."""
        sums = self._empty((2, x.shape[-1]), _FLOAT)
        self._statistics(x, None, sums=sums)
        return sums

    def _with_bias(self, x, bias, relu):
        """Returns ``x + bias``, or ``relu(x + bias)``; ``bias`` is (C,) float32, or ``None`` for 0."""
        return self._apply(x, normalization((None, bias, None, None), AFFINE), relu, None)

    def _statistics(self, x, attributes, mean=None, invstd=None, running=None, sums=None):
        if not rows_of(x)[0]:
            raise ValueError(f"an empty batch has no statistics: batch normalization of an array of shape {x.shape}")
        decay, eps = (0.0, 0.0) if attributes is None else (float(attributes.decay), float(attributes.eps))
        after = [*self._parts(x), mean, invstd, *(running or (None, None)), decay, eps, sums]
        self._run_rows("batch_norm", "batch_norm_statistics", [x], after, [x])

    def _statistics_of_ranks(self, x, attributes, running, ranks):
        """Returns :class:`Saved` of the batches of all processes, without a mask."""
        gathered, channels = ranks.statistics(self, x), x.shape[-1]
        mean, invstd, count = (self._empty((channels,), _FLOAT) for _ in range(3))
        arguments = [gathered, ranks.size, channels, mean, invstd, count, *(running or (None, None))]
        self._run_channels("batch_norm_finalize_ranks", arguments, attributes, channels)
        return Saved(mean, invstd, count=count)

    def _saved_of(self, one):
        """Returns :class:`Saved` of a batch, without a mask; the launch that normalizes fills it if there are sums."""
        saved = Saved(self._per_channel(one.gamma), self._per_channel(one.gamma))
        if one.sums is None:
            self._statistics(one.x, one.attributes, saved.mean, saved.invstd, one.running)
        return saved

    def _apply_batch(self, one, saved, add, backwards=False, factors=None):
        """Returns y, and ``saved`` with a mask if there is one."""
        x, relu = one.x, one.attributes.relu
        mask = self._mask_for(x) if relu and add is not None else None
        return self._apply(x, by_batch(one, saved), relu, add, mask, backwards, factors), saved._replace(mask=mask)

    def _mask_for(self, x):
        """Returns memory for bits that mark where the ReLU after a batch normalization of x was open."""
        rows, channels = rows_of(x)
        return self._empty((rows, ceil_div(channels, _GROUP)), _BITS)

    def _apply(self, x, how, relu, add, mask=None, backwards=False, factors=None):
        """Returns ``relu(factor * (scale * x + bias) + add)``.

        Args:
            x: (..., C).
            how: from :func:`normalization`.
            relu: whether there is a ReLU.
            add: ``None`` or like ``x``.
            mask: ``None``, or memory for the bits that mark where the ReLU was open.
            backwards: whether to walk through memory from its end: data that the launch before read last is then still
                in the second-level cache.
            factors: ``None`` for 1, or (N,) for x (N, ..., C).
        """
        y = self._empty(x.shape, x.dtype)
        after = [*how, int(backwards), *_of_images(x, factors)]
        given = {"ADD": add is not None, "RELU": relu, "MASK": mask is not None, "FACTORS": factors is not None}
        macros = tuple([(name, int(value)) for name, value in given.items()])
        self._run_rows("batch_norm_apply", "batch_norm_apply", [x, add, y, mask], after, [x, add, y], macros)
        return y

    def _gradients(
        self, dy, x, parameters, spread, eps, opening, opened, plus=None, backwards=False, of_ranks=None, factors=None
    ):
        """Returns dx, dgamma, dbeta, and the gradient after the ReLU if it was written on the way.

        Args:
            dy: (..., C).
            x: like ``dy``.
            parameters: as for :func:`normalization`.
            spread: as there; with a variance the statistics are constants.
            eps: as there.
            opening: how to find where the ReLU was open.
            opened: the array with this information, or ``None``.
            plus: ``None``, or an array like ``dy`` to be added to it.
            backwards: as for :meth:`_apply`, for the second launch.
            of_ranks: ``None``, or the processes and the count (C,) of all their rows.
            factors: as for :meth:`_apply`.
        """
        gamma = parameters[0]
        dgamma, dbeta = self._per_channel(gamma), self._per_channel(gamma)
        slope = offset = None
        if spread == INVSTD:
            slope, offset = self._per_channel(gamma), self._per_channel(gamma)
        dx = self._empty(x.shape, x.dtype)
        keeps = plus is not None or opening in (IN_BITS, BY_OUTPUT)
        kept = self._empty(x.shape, x.dtype) if keeps else None

        file = "batch_norm_backward"
        macros = (("OPENING", opening), ("PLUS", int(plus is not None)), ("FACTORS", int(factors is not None)))
        dense = [dy, plus, x, kept, dx] + [opened] * (opening == BY_OUTPUT)
        how = [*parameters, spread, float(eps)]
        results = [dgamma, dbeta, slope, offset]
        own = None if of_ranks is None else self._empty((2, *gamma.shape), _FLOAT)
        written = results if own is None else [own[0], own[1], None, None]
        of_images = _of_images(x, factors)
        after = [*self._parts(x), *how, *written, *of_images]
        self._run_rows(file, "batch_norm_backward_sums", [dy, plus, x, opened, kept], after, dense, macros)
        if own is not None:
            self._finish_gradients(own, *of_ranks, gamma, parameters[3], results)
        before = [dy if kept is None else kept, x, dx]
        after = [*how, slope, offset, int(backwards), *of_images]
        self._run_rows(file, "batch_norm_backward_apply", before, after, dense, macros)
        return dx, dgamma, dbeta, kept

    def _finish_gradients(self, own, ranks, count, gamma, invstd, results):
        sums, (channels,) = ranks.sum(own), gamma.shape
        arguments = [sums, ranks.size, channels, gamma, invstd, count, *results]
        blocks = ceil_div(channels, self.launcher.threads)
        self.kernels.launch("batch_norm_channels", "batch_norm_backward_finalize_ranks", blocks, arguments, _FLOAT)

    def _parts(self, x, numbers=2, rows=None):
        """Returns the arguments of a kernel that adds up partial sums of blocks for other blocks.

        Args:
            x: (..., C).
            numbers: of each channel.
            rows: as of :meth:`_run_rows`.
        """
        rows, channels = rows or rows_of(x)[0], x.shape[-1]
        geometry = _geometry(rows, channels, self.launcher.threads)
        if geometry.parts <= 1:
            return None, 0, 1
        shape = geometry.parts + geometry.sets, numbers, ceil_div(channels, _GROUP) * _GROUP
        partial = self._empty(shape, _FLOAT)
        counters = self.launcher.counters(geometry.blocks // geometry.parts * (geometry.sets + 1))
        return partial, counters, geometry.joined

    def _run_rows(self, file, name, before, after, dense, macros=(), rows=None):
        """Launches a kernel over all rows.

        Args:
            file: file with the kernel.
            name: name of the kernel.
            before: the first arguments, before the ones that assign rows and channels to threads.
            after: the last arguments.
            dense: the arrays with these rows; ``None`` for an omitted one. The first one gives shape and dtype.
            macros: macros of the file.
            rows: number of rows, if different from the first array's.
        """
        rows, channels, dtype = rows or rows_of(dense[0])[0], dense[0].shape[-1], dense[0].dtype
        geometry = _geometry(rows, channels, self.launcher.threads)
        width = 1 if channels % _GROUP or any(self._address_or_0(array) % 16 for array in dense) else _GROUP
        arguments = [*before, rows, channels, geometry.lanes, geometry.part_rows, *after]
        self.kernels.launch(file, name, geometry.blocks, arguments, dtype, width=width, macros=macros)

    def _run_channels(self, name, arguments, attributes, channels):
        """Launches a kernel with a thread for each channel; its last arguments are decay and eps."""
        arguments += [float(attributes.decay), float(attributes.eps)]
        blocks = ceil_div(channels, self.launcher.threads)
        self.kernels.launch("batch_norm_channels", name, blocks, arguments, _FLOAT)

    def _per_channel(self, like):
        return self._empty(like.shape, _FLOAT)


def normalization(parameters, spread, eps=0.0, sums=None, running=None, decay=0.0):
    """Returns the arguments of a kernel for ``NORMALIZATION`` in batch_norm_rows.cuh.

    Args:
        parameters: gamma, beta, mean, and invstd or variance.
        spread: which of both; or that gamma and beta are scale and bias; or that mean and invstd are computed from sums
            and written.
        eps: added to a variance.
        sums: (2, C) float32, or ``None``.
        running: mean and variance that the statistics from sums move, or ``None``.
        decay: their decay.
    """
    return [*parameters, spread, float(eps), sums, *(running or (None, None)), float(decay)]


def by_batch(one, saved):
    """Returns :func:`normalization` by the statistics in ``saved``; if there are sums, the kernel writes these.

    Args:
        one: :class:`~mixprec.backends.geometry.Normalized`.
        saved: from :meth:`BatchNormKernels._saved_of`.
    """
    parameters = one.gamma, one.beta, saved.mean, saved.invstd
    if one.sums is None:
        return normalization(parameters, INVSTD)
    return normalization(parameters, SUMS, one.attributes.eps, one.sums, one.running, one.attributes.decay)


def _of_images(x, factors):
    """Returns the arguments of a kernel that multiplies images by factors: these, and rows of an image."""
    if factors is None:
        return None, 1
    rows = rows_of(x)[0]
    if rows >= 2**32:  # the kernels divide in 32 bits
        raise ValueError(f"factors of images go up to 2**32 - 1 rows; found an array of shape {x.shape}")
    return factors, rows // len(factors)


class _Geometry:
    """The distribution of rows and channels over blocks, the same on every GPU.

    Attributes:
        lanes: groups of channels beside each other in a block, a power of two.
        parts: number of parts that the rows are split into.
        part_rows: rows of each part but the last.
        joined: number of parts whose sums a block adds up; about the root of all, so that there are as many such sums.
        sets: number of these sums.
        blocks: number of blocks.
    """

    def __init__(self, rows, channels, threads):
        groups = ceil_div(channels, _GROUP)
        self.lanes = min(_MAX_LANES, 1 << (groups - 1).bit_length())
        tiles = ceil_div(groups, self.lanes)
        parts = max(1, min(ceil_div(rows * self.lanes, threads * _ROWS_OF_THREAD), _BLOCKS // tiles))
        self.part_rows = max(1, ceil_div(rows, parts))
        self.parts = max(1, ceil_div(rows, self.part_rows))  # sums of nothing are 0
        at_once = self.parts * self.lanes <= _ENTRIES * threads
        self.joined = self.parts if at_once else math.isqrt(self.parts - 1) + 1
        self.sets = ceil_div(self.parts, self.joined)
        self.blocks = self.parts * tiles


_geometry = functools.lru_cache(maxsize=1024)(_Geometry)
