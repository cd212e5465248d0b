"""K-FAC over several processes: second moments are added up, and each process inverts its share of matrices.

What goes over the network are lower triangles, in one sum for the moments and one for the inverses, each with zeros in
the places of others. All processes have the same averages and inverses afterwards, bit for bit. Layers come in one
order on all of them, that of their names.
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
    """Makes sure that all processes have the same layers; all look in the same steps.

    Args:
        names: of the layers of this process, a list in their order.
        has_new: whether there are new ones among them.
        transport: :class:`~mixprec.distributed.transport.Transport`, or ``None`` for a process alone.

    Returns:
        Whether there are new ones on any of the processes.

    Raises:
        ValueError: they have not the same; on all of them.
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
    raise ValueError(f"KFAC: {name} has no gradient on rank {without}, but on others")


def average(layers, transport, decay, factor):
    """Makes of the second moments of a step, of all processes together, what the averages will be.

    Args:
        layers: list of :class:`~mixprec.kfac.layers.Layer`.
        transport: as for :func:`look_for_new`.
        decay: see :meth:`~mixprec.kfac.layers.Layer.average`.
        factor: what losses were multiplied by, a float32 array of shape (); ``None`` if there was no backward pass.
    """
    unscale = 1.0
    if transport is not None:
        unscale /= transport.size**2  # the loss is the mean of those of ranks
        _sum([array for layer in layers for array in (*layer.sums, layer.counts)], transport)
    if factor is not None:
        inverse = 1 / factor
        unscale = unscale * inverse * inverse  # the square of a factor of 2^64 does not fit into float32
    for layer in layers:
        layer.average(decay, unscale)


def invert(layers, transport, primitives, damping, norm_damping):
    """Computes new inverses of all layers, each matrix on one of the processes.

    Args:
        layers, transport: as for :func:`average`.
        primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
        damping: float32 array of shape ().
        norm_damping: what it is multiplied by for batch normalizations.

    Raises:
        DampingTooSmall: on NumPy, a finite matrix has no inverse. On a device that gives NaN, and the step is skipped.
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
    """Distributes work: the most costly first, each to the process that has least to do.

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
    """Adds up arrays over all ranks, in place; of matrices their lower triangles, which are mirrored."""
    if not arrays:
        return
    xp = get_array_module(arrays[0])
    ends = [0, *itertools.accumulate(map(triangles.size_of, arrays))]
    together = xp.empty_like(arrays[0], shape=ends[-1])
    parts = [together[start:end] for start, end in itertools.pairwise(ends)]
    for array, part in zip(arrays, parts, strict=True):  # CuPy's concatenate() uploads a table of many arrays
        part[...] = triangles.packed(array).reshape(-1)
    transport.start(together).join()
    transport.places()  # forgotten: passes are compared with those before, of steps that may have no such sum
    for array, part in zip(arrays, parts, strict=True):
        triangles.unpack(part, array)
