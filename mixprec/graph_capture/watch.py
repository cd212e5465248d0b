"""Compares the requests of two eager steps to the device, before a step is captured.

A graph repeats the same launches with the same addresses and numbers: it is correct only if steps make the same
requests. :class:`~mixprec.graph_capture.specialization.Specialization` watches the last calls of the warm-up with this
module.
"""

import bisect
import contextlib
import functools

import chainer
import numpy as np

from mixprec.backends import device_log
from mixprec.compat.registry import patch
from mixprec.graph_capture.origin import line_of

_PLAIN = (bool, int, float, str, bytes, type(None), np.generic)
_KEPT = (
    "uses memory that is kept from one step to the next but moves: write into the array in place, or keep it as an "
    "attribute of a link"
)
_LOWEST_ADDRESS = 2**20  # smaller numbers are not addresses of arrays


@contextlib.contextmanager
def watching(graphs):
    """A context that yields a list with a :class:`~mixprec.backends.device_log.Record` of each request to a device.

    Args:
        graphs: :class:`~mixprec.graph_capture.cuda_graphs.CupyGraphs` of the device.
    """
    with device_log.recording(line_of) as records, graphs.watching(), _recording.applied():
        yield records


@patch("chainer.function_node:FunctionNode.apply", when="mixprec.capture")
def _recording(original):
    """Without it launches by CuPy itself are not compared. Only while two steps are watched.

    CuPy's launches cannot be recorded; the functions of Chainer that make them can, with their numeric attributes.
    """

    @functools.wraps(original)
    def apply(self, inputs):
        if device_log.is_recording():
            numbers = tuple((name, value) for name, value in vars(self).items() if _is_plain(value))
            device_log.record("function", type(self).__name__, *numbers, *filter(None, map(_address_of_leaf, inputs)))
        return original(self, inputs)

    return apply


def _is_plain(value):
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _address_of_leaf(x):
    """Returns the address of an input that was not computed by a function, or ``None``."""
    array = x
    if isinstance(x, chainer.Variable):
        if "_node" not in vars(x) or x.creator_node is not None:  # without a node: deferred, not to be computed
            return None
        array = x.array
    return address_of(array)


def address_of(array):
    """Returns the address of an array, ``None`` for anything else."""
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    return array.data.ptr if hasattr(array, "data") and hasattr(array.data, "ptr") else None


def difference(before, now):
    """Returns the first difference between the requests of two steps.

    Memory that is allocated in a step may be anywhere, as a graph has its own.

    Args:
        before: records of a step, from :func:`watching`.
        now: records of the next step.

    Returns:
        str: one line that names the request and the line of the user's code; ``None`` if there is no difference.
    """
    carrying = _carrying(before, now)
    if carrying is not None:
        return f"{_at(carrying)}{_named(carrying)} {_KEPT}"
    before, now = _placed(before), _placed(now)
    for old, new in zip(before, now, strict=False):
        if (old.kind, old.name, len(old.arguments)) != (new.kind, new.name, len(new.arguments)):
            where = f" ({old.line})" if old.line != new.line else ""
            return f"{_at(new)}the step requests {_named(new)} where the step before requested {_named(old)}{where}"
        for a, b in zip(old.arguments, new.arguments, strict=True):
            if a != b and not (a != a and b != b):  # NaN
                return f"{_at(new)}{_changed(new, a, b)}"
    if len(before) != len(now):
        first = max(before, now, key=len)[min(len(before), len(now))]
        more = "more" if len(now) > len(before) else "fewer"
        return f"{_at(first)}the step makes {more} requests than the step before, such as {_named(first)}"
    return None


def _carrying(before, now):
    """Returns the first record with memory that was allocated in the previous step, not in this one; or ``None``.

    Its address may be the same in both steps, if it is freed before its successor is made; in a graph it cannot be.
    """
    places = [record.arguments for record in before if record.kind == "memory"]
    return next((record for record, _ in uses(now, places)), None)


def uses(records, places):
    """Finds where a step uses memory from before it.

    Args:
        records: records of the step, from :func:`watching`.
        places: tuples of address and bytes of that memory.

    Yields:
        A record with an address in one of the places that the step has not allocated, and the address of the place.
    """
    old, new = _Blocks(), _Blocks()
    for place in places:
        old.add(*place)
    for record in records:
        if record.kind == "memory":
            new.add(*record.arguments)
        else:
            for x in record.arguments:
                if isinstance(found := old.find(x), _InStep) and not isinstance(new.find(x), _InStep):
                    yield record, x - found[1]


def _changed(record, old, new):
    if isinstance(new, _InStep) or isinstance(old, _InStep) or _is_address(new):
        return f"{_named(record)} {_KEPT}"
    if isinstance(new, tuple) and len(new) == 2 and isinstance(new[0], str):  # an attribute of a function
        return f"{new[0]} of {_named(record)} is {new[1]!r}, and was {old[1]!r} a step before: a graph would repeat it"
    return f"{_named(record)} has the number {new!r}, and had {old!r} a step before: a graph would repeat it"


def _is_address(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= _LOWEST_ADDRESS


def _named(record):
    kinds = {"kernel": "the kernel", "cudnn": "cuDNN's", "array": "the array function", "function": "the function"}
    kinds |= {"report": "the reported", "number": "the number", "read": "a read by", "upload": "an upload by"}
    kinds |= {"copy": "the copy", "blas": "the matrix"}
    return f"{kinds.get(record.kind, record.kind)} {record.name}"


def _at(record):
    return f"{record.line}: " if record.line else ""


class _InStep(tuple):
    """An address in memory that was allocated in the step: (number of the block by first use, offset)."""


def _placed(records):
    """Returns records with :class:`_InStep` for addresses in new memory, without allocations and table uploads."""
    blocks, placed = _Blocks(), []
    for record in records:
        if record.kind == "memory":
            blocks.add(*record.arguments)
        elif (record.kind, record.name) != ("upload", "table"):
            placed.append(record._replace(arguments=tuple(map(blocks.find, record.arguments))))
    return placed


class _Blocks:
    def __init__(self):
        self._starts, self._blocks = [], {}  # start -> (end, its number by first use or None)
        self._used = 0

    def add(self, start, size):
        if not size:
            return
        position = bisect.bisect_left(self._starts, start)
        if position and self._blocks[self._starts[position - 1]][0] > start:  # the earlier block was freed
            position -= 1
        while position < len(self._starts) and self._starts[position] < start + size:
            del self._blocks[self._starts.pop(position)]
        bisect.insort(self._starts, start)
        self._blocks[start] = [start + size, None]

    def find(self, value):
        if not _is_address(value):
            return value
        index = bisect.bisect_right(self._starts, value) - 1
        if index < 0:
            return value
        block = self._blocks[self._starts[index]]
        if value >= block[0]:
            return value
        if block[1] is None:
            block[1], self._used = self._used, self._used + 1
        return _InStep((block[1], value - self._starts[index]))
