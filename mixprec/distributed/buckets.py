"""Which gradients travel together: from sizes to places in memory, computed alike by all ranks.

Gradients of one dtype lie behind one another in the order in which the backward pass finishes them. A bucket is a part
of that memory, and is sent as soon as all of it is there. :mod:`~mixprec.distributed.exchange` asks for a
:class:`Layout` when parameters are new.
"""

from typing import NamedTuple

# Bytes of a bucket. Small models have PARTS of them, as most is to be sent before the backward pass is over; but a
# message has a price of its own.
MOST = 4 * 2**20
LEAST = 2**16
PARTS = 8
ALIGNED = 8  # on a device each gradient begins at a multiple of so many elements: 16 bytes of 16-bit numbers
LAST = 4  # by what the last bucket is smaller: nothing of the backward pass is left to hide it behind


class Slot(NamedTuple):
    """The place of a parameter's gradient.

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
        names: of its parameters, in the order of their gradients in memory.
    """

    dtype: str
    start: int
    stop: int
    names: tuple[str, ...]


class Layout(NamedTuple):
    """Places of all gradients.

    Attributes:
        slots: dict of names and :class:`Slot`.
        buckets: list of :class:`Bucket`, in the order in which they are sent.
        sizes: dict of dtypes and their numbers of elements.
    """

    slots: dict[str, Slot]
    buckets: list[Bucket]
    sizes: dict[str, int]


def limit_of(total):
    """Returns the bytes of a bucket of gradients that have ``total`` bytes together."""
    return min(MOST, max(LEAST, total // PARTS))


def layout(members, itemsizes, limit, aligned=1):
    """Returns a :class:`Layout`.

    Args:
        members: ``[(name, dtype, size)]`` in the order in which gradients become ready.
        itemsizes: dict of dtypes and the bytes of an element while it travels.
        limit: bytes of a bucket. One with a single gradient may have more, the last one of a dtype has a part of it.
        aligned: each gradient begins at a multiple of so many elements; a bucket ends at one.

    Example:
        >>> plan = layout([("c", "float32", 6), ("b", "float32", 2), ("a", "float32", 1)], {"float32": 4}, limit=32)
        >>> [(bucket.names, bucket.start, bucket.stop) for bucket in plan.buckets]
        [(('c', 'b'), 0, 8), (('a',), 8, 9)]
    """
    places = {name: place for place, (name, _, _) in enumerate(members)}
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
    buckets.sort(key=lambda bucket: places[bucket.names[-1]])
    rooms = {name: size for name, _, size in members}
    slots = {}
    for number, bucket in enumerate(buckets):
        start = bucket.start
        for name in bucket.names:
            slots[name] = Slot(bucket.dtype, start, start + lengths[name], number)
            start += rooms[name]
    return Layout(slots, buckets, sizes)


def _parts(members, room):
    """Splits ``[(name, size)]`` into lists of at most ``room`` elements from the end on: the last one is smaller."""
    parts, left = [[]], room // LAST
    for member in reversed(members):
        if parts[-1] and member[1] > left:
            parts.append([])
            left = room
        parts[-1].append(member)
        left -= member[1]
    return [part[::-1] for part in reversed(parts)]
