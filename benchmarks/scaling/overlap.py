"""How much of the sums of gradients is not hidden behind the backward pass."""

import dataclasses

from mixprec.distributed.buckets import layout


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Gradients that are summed by one all-reduce.

    Attributes:
        ready: seconds after the beginning of the backward pass at which all of them are there.
        nbytes: that are summed.
    """

    ready: float
    nbytes: int


def buckets(timeline, limit, itemsizes):
    """Returns the list of :class:`Bucket` of a step as mixprec makes them, in the order in which they are ready.

    Args:
        timeline: :class:`~benchmarks.scaling.backward_timeline.Timeline`.
        limit: bytes of a bucket; ``None`` for one that holds all gradients, and is ready when the backward pass ends,
            as without overlap.
        itemsizes: dict from the dtypes of parameters to the bytes of an element of their sum.
    """
    gradients = timeline.gradients
    if limit is None:
        return [Bucket(timeline.backward, sum(itemsizes[each.dtype] * each.size for each in gradients))]
    members = [(place, each.dtype, each.size) for place, each in enumerate(gradients)]
    return [
        Bucket(gradients[bucket.names[-1]].ready, itemsizes[bucket.dtype] * (bucket.stop - bucket.start))
        for bucket in layout(members, itemsizes, limit).buckets
    ]


def end(found, seconds):
    """Returns the seconds after the beginning of the backward pass at which the last bucket is summed.

    One is summed after the other, each when it is ready.

    Args:
        found: list of :class:`Bucket`.
        seconds: callable from bytes to the seconds of an all-reduce.
    """
    time = 0.0
    for bucket in found:
        time = max(time, bucket.ready) + seconds(bucket.nbytes)
    return time
