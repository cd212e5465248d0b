"""Nodes of GPUs, the routes on which they sum gradients, and how long a step of so many GPUs takes: a model."""

import dataclasses
from collections.abc import Callable

from benchmarks.scaling import overlap
from benchmarks.scaling.backward_timeline import Timeline
from benchmarks.scaling.collectives import NETWORK, Level, hierarchical, ring, tree
from benchmarks.scaling.jitter import expected_maximum
from mixprec.distributed.buckets import MOST

SHARE = 0.85  # of the rate of a link that an all-reduce reaches
JITTER = 0.02  # standard deviation of the time of a GPU's step, as a share of it

ASSUMPTIONS = {
    "share of a link's rate that an all-reduce reaches": SHARE,
    "standard deviation of a GPU's step, as a share of it": JITTER,
    "bytes of a bucket": MOST,
    "seconds of a hop in the network": NETWORK,
}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Nodes that are all alike.

    Attributes:
        gpus: of a node.
        latency: seconds of a hop from a GPU to another one of its node.
        inside: bytes that a GPU sends to others of its node in a second, at the rate of the links.
        outside: bytes that a node sends to others in a second, likewise.
    """

    gpus: int
    latency: float
    inside: float
    outside: float

    def within(self, gpus):
        """Returns the :class:`~benchmarks.scaling.collectives.Level` of so many GPUs of a node."""
        return Level(gpus, self.latency, SHARE * self.inside)

    def rails(self, nodes):
        """Returns the level of one GPU of each of so many nodes: all GPUs of a node share its links to the outside."""
        return Level(nodes, NETWORK, SHARE * self.outside / self.gpus)

    def along(self, gpus):
        """Returns the level of a ring along GPUs of several nodes, which leaves each node once."""
        latency = ((self.gpus - 1) * self.latency + NETWORK) / self.gpus
        return Level(gpus, latency, SHARE * min(self.inside, self.outside))


def one_ring(cluster, gpus, nbytes):
    """Returns the seconds of an all-reduce by a ring of all GPUs; arguments as of :func:`ring_of_rails`."""
    return ring(nbytes, cluster.within(gpus) if gpus <= cluster.gpus else cluster.along(gpus))


def ring_of_rails(cluster, gpus, nbytes):
    """Returns the seconds of an all-reduce with a reduce-scatter in each node, and a ring of nodes for each share.

    Args:
        cluster: :class:`Cluster`.
        gpus: number of all GPUs: at most those of a node, or a multiple of them.
        nbytes: that each of them has.
    """
    return _by_rails(cluster, gpus, nbytes, ring)


def tree_of_rails(cluster, gpus, nbytes):
    """Returns the same with trees of nodes."""
    return _by_rails(cluster, gpus, nbytes, tree)


def torus(columns):
    """Returns a route on a 2D torus (Mikami et al. 2018): rings of so many GPUs, then rings across these rings."""

    def route(cluster, gpus, nbytes):
        return hierarchical(nbytes, [cluster.along(columns), cluster.rails(gpus // columns)])

    return route


def _by_rails(cluster, gpus, nbytes, outer):
    inside = min(gpus, cluster.gpus)
    return hierarchical(nbytes, [cluster.within(inside), cluster.rails(gpus // inside)], outer)


@dataclasses.dataclass(frozen=True)
class Training:
    """Data parallel training with the same work for each GPU.

    Attributes:
        timeline: of one GPU alone.
        cluster: its :class:`Cluster`.
        route: one of the routes of this module.
        itemsizes: dict from the dtypes of parameters to the bytes of an element of their sum.
        bucket: bytes of a bucket; ``None`` for one all-reduce after the backward pass.
    """

    timeline: Timeline
    cluster: Cluster
    route: Callable
    itemsizes: dict[str, int]
    bucket: int | None = MOST

    def seconds(self, gpus):
        """Returns the seconds of a step of so many GPUs: that of one, what is not hidden, and the wait for all."""
        alone = self.timeline.seconds
        if gpus == 1:
            return alone
        found = overlap.buckets(self.timeline, self.bucket, self.itemsizes)
        end = overlap.end(found, lambda nbytes: self.route(self.cluster, gpus, nbytes))
        exposed = max(0.0, end - self.timeline.backward)
        return alone * (1 + JITTER * expected_maximum(gpus)) + exposed

    def efficiency(self, gpus, base=1):
        """Returns the rate of a GPU among so many as a share of its rate among ``base``."""
        return self.seconds(base) / self.seconds(gpus)
