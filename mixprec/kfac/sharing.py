"""K-FAC over several processes: second moments are added up, and each process inverts its share of matrices.

What goes over the network are lower triangles, in one sum for the moments and one for the inverses, each with zeros in
the places of others. All processes have the same averages and inverses afterwards, bit for bit.
"""

import numpy as np
from chainer.backend import get_array_module

from mixprec.backends.transfers import on_host
from mixprec.kfac import triangles
from mixprec.kfac.layers import FilterLayer


def check_same(layers, transport):
    """Makes sure that all processes have the same layers.

    Args:
        layers: dict from names to :class:`~mixprec.kfac.layers.Layer`.
        transport: :class:`~mixprec.distributed.transport.Transport`.

    Raises:
        ValueError: they have not; on all of them.
    """
    first, *others = of_ranks = transport.gather(sorted(layers))
    if any(names != first for names in others):
        name = min(name for names in others for name in {*names} ^ {*first})
        without = next(rank for rank, names in enumerate(of_ranks) if name not in names)
        raise ValueError(f"KFAC: {name} has no gradient on rank {without}, but on others")


def average(layers, transport, decay, factor):
    """Makes of the second moments of a step, of all processes together, what the averages will be.

    Args:
        layers: list of :class:`~mixprec.kfac.layers.Layer`.
        transport: :class:`~mixprec.distributed.transport.Transport`, or ``None`` for a process alone.
        decay: see :meth:`~mixprec.kfac.layers.Layer.average`.
        factor: what losses were multiplied by, a float32 array of shape (); ``None`` if there was no backward pass.
    """
    unscale = 1.0
    if transport is not None:
        unscale /= transport.size**2  # the loss is the mean of those of ranks
        ordered = sorted(layers, key=lambda layer: layer.names)
        _sum([array for layer in ordered for array in (*layer.sums, layer.counts)], transport)
    if factor is not None:
        inverse = 1 / factor
        unscale = unscale * inverse * inverse  # the square of a factor of 2^64 does not fit into float32
    for layer in layers:
        layer.average(decay, unscale)


def invert(layers, transport, primitives, damping):
    """Computes new inverses of all layers, each matrix on one of the processes.

    Args:
        layers, transport: as for :func:`average`.
        primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
        damping: float32 array of shape ().

    Raises:
        ValueError: on NumPy, a finite matrix has no inverse. On a device that gives NaN, and the step is skipped.
    """
    if transport is None:
        for layer in layers:
            layer.invert(primitives, damping)
    else:
        _invert_shares(layers, transport, primitives, damping)
    for layer in layers:
        for sums, inverse in zip(layer.sums, layer.new_inverses, strict=True):
            if on_host(inverse) and not np.isfinite(inverse).all() and np.isfinite(sums).all():
                raise ValueError(
                    f"KFAC: second moments of {layer.names[0]} plus damping {float(damping):g} are not positive "
                    "definite in float32: set a larger damping"
                )


def _invert_shares(layers, transport, primitives, damping):
    layers = sorted(layers, key=lambda layer: layer.names)
    shared = [layer for layer in layers if isinstance(layer, FilterLayer)]
    own = shares([cost for layer in shared for cost in layer.costs], transport.size)[transport.rank]
    for number, layer in enumerate(shared):
        layer.invert(primitives, damping, [part for part in range(2) if 2 * number + part in own])
    _sum([array for layer in shared for array in layer.new_inverses], transport)
    for layer in layers:
        if not isinstance(layer, FilterLayer):
            layer.invert(primitives, damping)


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
    together = xp.concatenate([triangles.packed(array).reshape(-1) for array in arrays])
    transport.start(together).join()
    start = 0
    for array in arrays:
        size = triangles.size_of(array)
        triangles.unpack(together[start : start + size], array)
        start += size
