"""Divides gradients into buckets that are sent together, with their positions in memory; the same on all ranks.

Gradients of one dtype are contiguous in memory, in the order in which the backward pass finishes them. A bucket is a
part of that memory, and is sent as soon as it is complete. :mod:`~mixprec.distributed.exchange` makes a new
:class:`Layout` when parameters change.
"""

from typing import NamedTuple

# Bytes of a bucket. Small models have PARTS buckets, as most data should be sent before the backward pass ends; but
# each message has a cost.
MOST = 4 * 2**20
LEAST = 2**16
PARTS = 8
ALIGNED = 8  # on a device each gradient begins at a multiple of this many elements: 16 bytes of 16-bit numbers
LAST = 4  # factor by which the last bucket is smaller: it cannot overlap with the backward pass


class Slot(NamedTuple):
    """The position of a parameter's gradient in memory.

    Attributes:
        dtype: name of the parameter's dtype.
        start, stop: elements of the memory for that dtype.
        bucket: number of its bucket.
    """

    dtype: str
    start: int
    stop: int
    bucket: int


class Bucket(NamedTuple):
    """A part of the memory for one dtype.

    Attributes:
        dtype, start, stop: as in :class:`Slot`.
        names: names of its parameters, in the order of their gradients in memory.
    """

    dtype: str
    start: int
    stop: int
    names: tuple[str, ...]


class Layout(NamedTuple):
    """The positions of all gradients.

    Attributes:
        slots: dict from names to :class:`Slot`.
        buckets: list of :class:`Bucket`, in the order in which they are sent.
        sizes: dict from dtypes to numbers of elements.
    """

    slots: dict[str, Slot]
    buckets: list[Bucket]
    sizes: dict[str, int]


def limit_of(total):
    """Returns the size of a bucket in bytes, for gradients with ``total`` bytes."""
    return min(MOST, max(LEAST, total // PARTS))


def layout(members, itemsizes, limit, aligned=1):
    """Returns a :class:`Layout`.

    Args:
        members: ``[(name, dtype, size)]`` in the order in which gradients become ready.
        itemsizes: dict from dtypes to the bytes of an element in a message.
        limit: bytes of a bucket. A bucket with a single gradient may be larger; the last bucket of a dtype is smaller.
        aligned: each gradient begins at a multiple of this many elements, and each bucket ends at one.

    Example:
        >>> plan = layout([("c", "float32", 6), ("b", "float32", 2), ("a", "float32", 1)], {"float32": 4}, limit=32)
        >>> [(bucket.names, bucket.start, bucket.stop) for bucket in plan.buckets]
        [(('c', 'b'), 0, 8), (('a',), 8, 9)]
    """
    positions = {name: position for position, (name, _, _) in enumerate(members)}
    lengths = {name: size for name, _, size in members}
    members = [(name, dtype, -(-size // aligned) * aligned) for name, dtype, size in members]
    sizes, buckets = {}, []
    for dtype in dict.fromkeys(dtype for _, dtype, _ in members):
        start = 0
        of_dtype = [(name, size) for name, own, size in members if own == dtype]
        for part in _parts(of_dtype, limit // itemsizes[dtype]):
            stop = start + sum(size for _, size in part)
            buckets.append(Bucket(dtype, start, stop, tuple(name for name, _ in part)))
            start = stop
        sizes[dtype] = start
    buckets.sort(key=lambda bucket: positions[bucket.names[-1]])
    rooms = {name: size for name, _, size in members}
    slots = {}
    for number, bucket in enumerate(buckets):
        start = bucket.start
        for name in bucket.names:
            slots[name] = Slot(bucket.dtype, start, start + lengths[name], number)
            start += rooms[name]
    return Layout(slots, buckets, sizes)


def _parts(members, room):
    """Splits ``[(name, size)]`` into lists of at most ``room`` elements, starting at the end; the last is smaller."""
    parts, left = [[]], room // LAST
    for member in reversed(members):
        if parts[-1] and member[1] > left:
            parts.append([])
            left = room
        parts[-1].append(member)
        left -= member[1]
    return [part[::-1] for part in reversed(parts)]
