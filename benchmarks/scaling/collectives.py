"""The time of an all-reduce by the alpha-beta model: a message costs a latency, and its bytes over a bandwidth.

The formulas are those of Patarasuk and Yuan 2009 (doi:10.1016/j.jpdc.2008.09.002) for the ring, and of Sanders, Speck
and Träff 2009 (doi:10.1016/j.parco.2009.09.001) for two trees, each of which carries half of the bytes. The time of the
additions is left out: a GPU adds faster than a link sends.
"""

import dataclasses
import math

# Seconds of a hop of a ring, by NCCL's own model (NVIDIA/nccl, src/graph/tuning.cc, hwLat, protocol Simple).
NVLINK, PCIE, NETWORK = 3.4e-6, 5.7e-6, 9.6e-6


@dataclasses.dataclass(frozen=True)
class Level:
    """Members that are connected alike: the GPUs of a node, or the nodes.

    Attributes:
        members: number of them.
        latency: seconds of a hop from one to the next.
        bandwidth: bytes that each sends in a second, while it receives as many.
    """

    members: int
    latency: float
    bandwidth: float


def ring(nbytes, level):
    """Returns the seconds of an all-reduce of so many bytes along a ring: a reduce-scatter, then an all-gather."""
    return 2 * half_ring(nbytes, level)


def half_ring(nbytes, level):
    """Returns the seconds of a reduce-scatter, or of an all-gather, of so many bytes in all along a ring."""
    members = level.members
    return (members - 1) * (level.latency + nbytes / members / level.bandwidth)


def tree(nbytes, level):
    """Returns the seconds of an all-reduce of so many bytes by two binary trees: up, then down, piece after piece."""
    if level.members == 1:
        return 0.0
    return 2 * (math.ceil(math.log2(level.members)) * level.latency + nbytes / level.bandwidth)


def hierarchical(nbytes, levels, outer=ring):
    """Returns the seconds of an all-reduce over several levels.

    A reduce-scatter in each level leaves a member with its share of the bytes, of which the last level computes an
    all-reduce. All-gathers go back. All groups of a level are at work at once.

    Args:
        nbytes: of the array that all GPUs have.
        levels: list of :class:`Level` from the inside; the bandwidth is that of one member of one group.
        outer: :func:`ring` or :func:`tree`, for the last level.

    Example:
        Nodes of 8 GPUs, each with a link of 50 GB/s of its own to the outside::

            hierarchical(51e6, [Level(8, NVLINK, 450e9), Level(128, NETWORK, 50e9)], tree)
    """
    *inner, last = levels
    seconds = 0.0
    for level in inner:
        seconds += 2 * half_ring(nbytes, level)
        nbytes /= level.members
    return seconds + outer(nbytes, last)
