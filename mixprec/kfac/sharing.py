"""K-FAC over several processes: second moments are summed, and each process inverts its share of matrices.

Lower triangles are sent, in one sum for the moments and one for the inverses, in which each process has zeros for the
matrices of others. Afterwards all processes have the same averages and inverses, bit for bit. Layers are in the order
of their names on all processes.
"""

import itertools
import zlib

import numpy as np
from chainer.backend import get_array_module

from mixprec.backends.transfers import on_host
from mixprec.base.messages import OneLineError
from mixprec.kfac import triangles
from mixprec.kfac.layers import FilterLayer


class DampingTooSmall(OneLineError):
    """Second moments have no inverse in float32."""


def look_for_new(names, has_new, transport):
    """Checks that all processes have the same layers; all processes check in the same steps.

    Args:
        names: list of the names of this process's layers, in order.
        has_new: whether some of them are new.
        transport: :class:`~mixprec.distributed.transport.Transport`, or ``None`` for a single process.

    Returns:
        Whether any process has new layers.

    Raises:
        ValueError: their layers differ; raised on all processes.
    """
    if transport is None:
        return has_new
    news, numbers = zip(*transport.gather((has_new, zlib.crc32(repr(names).encode()))), strict=True)
    if len({*numbers}) > 1:
        _check_same(transport.gather(names))
    return any(news)


def _check_same(of_ranks):
    first, *others = map(set, of_ranks)
    name = min(name for names in others for name in names ^ first)
    without = next(rank for rank, names in enumerate(of_ranks) if name not in names)
    raise ValueError(f"KFAC: {name} has no gradient on rank {without}, but has one on others")


def average(layers, transport, decay, factor):
    """Turns the second moments of a step, summed over all processes, into the new averages.

    Args:
        layers: list of :class:`~mixprec.kfac.layers.Layer`.
        transport: as for :func:`look_for_new`.
        decay: see :meth:`~mixprec.kfac.layers.Layer.average`.
        factor: factor on the losses, a float32 array of shape (); ``None`` if there was no backward pass.
    """
    unscale = 1.0
    if transport is not None:
        unscale /= transport.size**2  # the loss is the mean over ranks
        _sum([array for layer in layers for array in (*layer.sums, layer.counts)], transport)
    if factor is not None:
        inverse = 1 / factor
        unscale = unscale * inverse * inverse  # the square of a factor of 2^64 overflows in float32
    for layer in layers:
        layer.average(decay, unscale)


def invert(layers, transport, primitives, damping, norm_damping):
    """Computes new inverses of all layers, each matrix on one of the processes.

    Args:
        layers, transport: as for :func:`average`.
        primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
        damping: float32 array of shape ().
        norm_damping: factor on the damping for batch normalizations.

    Raises:
        DampingTooSmall: on NumPy, a finite matrix has no inverse. On a device the result is NaN, and the step is
            skipped.
    """
    shared = [layer for layer in layers if isinstance(layer, FilterLayer)]
    if transport is None:
        for layer in shared:
            layer.invert(primitives, damping)
    else:
        _invert_shares(shared, transport, primitives, damping)
    of_norms = damping * np.float32(norm_damping)
    for layer in layers:
        if not isinstance(layer, FilterLayer):
            layer.invert(primitives, of_norms)
    for layer in layers:
        layer.has_inverses = True
        for sums, inverse in zip(layer.sums, layer.new_inverses, strict=True):
            if on_host(inverse) and not np.isfinite(inverse).all() and np.isfinite(sums).all():
                raise DampingTooSmall(
                    f"KFAC: second moments of {layer.names[0]} plus damping {float(damping):g} are not positive "
                    "definite in float32: set a larger damping"
                )


def _invert_shares(shared, transport, primitives, damping):
    own = shares([cost for layer in shared for cost in layer.costs], transport.size)[transport.rank]
    for number, layer in enumerate(shared):
        layer.invert(primitives, damping, [part for part in range(2) if 2 * number + part in own])
    _sum([array for layer in shared for array in layer.new_inverses], transport)


def shares(costs, processes):
    """Distributes work: the most expensive first, each to the process with the least work.

    Args:
        costs: list of numbers.
        processes: number of processes.

    Returns:
        list of sets of indices of ``costs``, one for each process.
    """
    loads, members = [0] * processes, [set() for _ in range(processes)]
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        process = loads.index(min(loads))
        loads[process] += costs[number]
        members[process].add(number)
    return members


def _sum(arrays, transport):
    """Sums arrays over all ranks, in place; for matrices only the lower triangles, which are then mirrored."""
    if not arrays:
        return
    xp = get_array_module(arrays[0])
    ends = [0, *itertools.accumulate(map(triangles.size_of, arrays))]
    together = xp.empty_like(arrays[0], shape=ends[-1])
    parts = [together[start:end] for start, end in itertools.pairwise(ends)]
    for array, part in zip(arrays, parts, strict=True):  # CuPy's concatenate() uploads a table of many arrays
        part[...] = triangles.packed(array).reshape(-1)
    transport.start(together).join()
    transport.take_log()  # discarded: the log is compared with earlier steps, which may not have this sum
    for array, part in zip(arrays, parts, strict=True):
        triangles.unpack(part, array)
