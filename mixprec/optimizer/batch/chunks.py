"""Parameters on NumPy in chunks, small enough for a processor's second-level cache with all that is computed from them.

:class:`~mixprec.optimizer.batch.chunk_group.ChunkGroup` makes them, and goes through them in each step. A chunk
is a part of one large parameter, worked on where it is, or many small ones, copied side by side and back.
"""

import itertools
import operator
from typing import NamedTuple

import numpy as np

from mixprec.backends.cpu import blocks
from mixprec.backends.memory import flat, shaped
from mixprec.dtypes import BFLOAT16
from mixprec.master_arrays import written

SIZE = 1 << 15  # elements of a chunk: beyond it the cost of a call no longer counts
LARGE = 1 << 13  # a parameter of so many elements has chunks of its own
_DTYPE_OF_PARAM = operator.attrgetter("param.dtype")


class Scratch:
    """Memory for what is computed on the way, one for all chunks of a dtype.

    Args:
        dtype: of the masters.
    """

    def __init__(self, dtype):
        self.gradient, self.a, self.b = (np.empty(SIZE, dtype) for _ in range(3))
        self.rounding = blocks.Rounding(SIZE)


class _Chunk:
    """What both kinds of chunk have. All arrays are flat.

    Attributes:
        master: masters.
        states: tuple of arrays in the order of the formula's states.
    """

    def gradient(self, out):
        """Writes the unscaled gradient to ``out``, and returns it."""
        for source, inverse, part in self._sources:
            blocks.unscale(source, inverse, out[part])
        return out

    def is_finite(self, out):
        """Whether the unscaled gradient is finite; ``out`` is scratch."""
        parts = [(source, inverse, out[part]) for source, inverse, part in self._sources]
        return all(itertools.starmap(blocks.is_finite_unscaled, parts))

    def forget(self):
        """Lets go of the gradient."""
        self._sources = ()


class Part(_Chunk):
    """A part of one large parameter.

    Args:
        entry: :class:`~mixprec.optimizer.batch.entries.Entry`.
        part: slice of the memory of its arrays.
    """

    def __init__(self, entry, part):
        self._part = part
        names = entry.formula.states if entry.formula else ()
        self.master = flat(entry.master.array)[part]
        self.states = tuple(flat(entry.rule.state[name])[part] for name in names)
        self._rounded = _Rounded(flat(entry.param.array)[part]) if entry.is_rounded else None

    def follow(self):
        """Takes over what was written into the parameter since it was last rounded."""
        if self._rounded is not None:
            self._rounded.reaches(self.master)

    def load(self, gradients, inverses):
        """Takes the gradient, flat, in a sequence of one, and what to multiply it by, likewise or a float."""
        (gradient,) = gradients
        inverse = inverses if isinstance(inverses, float) else inverses[0]
        self._sources = [(gradient[self._part], inverse, slice(None))]

    def store(self, rounding):
        """Rounds the masters into the parameter."""
        if self._rounded is not None:
            self._rounded.round(self.master, rounding)


class Pack(_Chunk):
    """Small parameters of one group, side by side.

    The states of their rules become views of the pack's. Masters are copied in and out, as others may hold them.

    Args:
        entries: :class:`~mixprec.optimizer.batch.entries.Entry` of each, those of one dtype one behind the other.
    """

    def __init__(self, entries):
        masters = [entry.master.array for entry in entries]
        self._sizes = [array.size for array in masters]
        self.master = np.concatenate(list(map(flat, masters)))
        self._to_masters = _memory(masters, self.master)
        names = entries[0].formula.states if entries[0].formula else ()
        self.states = tuple(np.empty_like(self.master) for _ in names)
        for name, state in zip(names, self.states, strict=True):
            for entry, view in zip(entries, _views(state, masters), strict=True):
                view[...] = entry.rule.state[name]
                entry.rule.state[name] = view
        self._sections = list(_sections(entries))

    def follow(self):
        """Takes the masters in, and over what was written into the parameters since they were last rounded."""
        _gather(self._to_masters)
        changed = False
        for section in self._sections:
            if section.rounded is not None:
                _gather(section.to_params)
                changed |= section.rounded.reaches(self.master[section.part])
        if changed:
            _scatter(self._to_masters)

    def load(self, gradients, inverses):
        """Takes the gradients of the parameters and what to multiply each of them by, or one float for all."""
        if not isinstance(inverses, float):
            with np.errstate(over="ignore"):  # that of a scale below what the dtype can divide by
                inverses = np.repeat(np.array(inverses, self.master.dtype), self._sizes)
        self._sources = []
        for section in self._sections:
            source = _side_by_side(gradients[section.members], self.master.dtype)
            if source.size:
                inverse = inverses if isinstance(inverses, float) else inverses[section.part]
                self._sources.append((source, inverse, section.part))

    def store(self, rounding):
        """Copies the masters back, and rounds them into the parameters."""
        _scatter(self._to_masters)
        for section in self._sections:
            if section.rounded is not None:
                section.rounded.round(self.master[section.part], rounding)
                _scatter(section.to_params)


class _Section(NamedTuple):
    """The parameters of one dtype in a :class:`Pack`.

    Attributes:
        members: slice of its parameters.
        part: slice of its memory.
        rounded: :class:`_Rounded` of that part, ``None`` if the masters are the parameters.
        to_params: pairs of buffers, the memory of each parameter and its part of that of ``rounded``.
    """

    members: slice
    part: slice
    rounded: object
    to_params: list


def _sections(entries):
    first = start = 0
    for _, members in itertools.groupby(entries, _DTYPE_OF_PARAM):
        members = list(members)
        last, stop = first + len(members), start + sum(entry.param.size for entry in members)
        rounded, to_params = None, []
        if members[0].is_rounded:
            params = [entry.param.array for entry in members]
            rounded = _Rounded(np.concatenate(list(map(flat, params))))
            to_params = _memory(params, rounded.array)
        yield _Section(slice(first, last), slice(start, stop), rounded, to_params)
        first, start = last, stop


class _Rounded:
    """FP16 or BF16 parameters, which are rounded masters, and a shadow of them, which tells if they were written to."""

    def __init__(self, array):
        self.array = array
        self._shadow = array.copy()

    def reaches(self, master):
        """Takes over into ``master`` what was written into the parameters; returns whether there was anything."""
        if self.array.tobytes() == self._shadow.tobytes():  # the quickest way to compare, in spite of two copies
            return False
        self._shadow[...] = self.array
        np.copyto(master, self.array, where=written(self.array, master))
        return True

    def round(self, master, rounding):
        """Rounds ``master`` into the parameters."""
        if self.array.dtype == BFLOAT16:
            self.array[...] = master
        else:
            rounding(master, self.array)
        np.copyto(self._shadow, self.array)


def chunks_of(entries):
    """Returns ``[(chunk, its entries)]`` for entries of one group."""
    chunks, small, filled = [], [], 0
    for entry in sorted(entries, key=lambda entry: entry.param.dtype.name):
        size = entry.master.array.size
        if size >= LARGE:
            chunks += [(Part(entry, slice(start, start + SIZE)), [entry]) for start in range(0, size, SIZE)]
            continue
        if filled + size > SIZE:
            chunks.append((Pack(small), small))
            small, filled = [], 0
        small = [*small, entry]
        filled += size
    if small:
        chunks.append((Pack(small), small))
    return chunks


def _views(memory, arrays):
    """Returns views of memory, one behind the other, in the shapes of ``arrays`` and with their orders of axes."""
    views, start = [], 0
    for array in arrays:
        views.append(shaped(memory[start : start + array.size], array))
        start += array.size
    return views


def _memory(arrays, memory):
    """Returns ``[(memory of an array, its part of the common memory)]`` as buffers: quicker to copy than arrays are."""
    return [(_buffer(array), _buffer(view)) for array, view in zip(arrays, _views(memory, arrays), strict=True)]


def _buffer(array):
    return flat(array).view(np.uint8).data  # of bfloat16 there are none


def _side_by_side(arrays, dtype):
    """Returns the elements of arrays in one of one dimension: in a dtype that holds all, or in ``dtype``."""
    try:
        return np.concatenate(arrays, axis=None)
    except TypeError:  # float16 and bfloat16 have none in common
        return np.concatenate(arrays, axis=None, dtype=dtype)


def _scatter(pairs):
    for array, part in pairs:
        array[:] = part


def _gather(pairs):
    for array, part in pairs:
        part[:] = array
