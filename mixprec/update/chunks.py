"""Parameters on NumPy in chunks, small enough for a processor's second-level cache with all that is computed from them.

A chunk is a part of one large parameter, worked on where it is, or many small ones, copied side by side and back.
"""

import numpy as np

from mixprec.backends import half
from mixprec.update.memory import flat, shaped

SIZE = 1 << 15  # elements of a chunk: beyond it the cost of a call no longer counts
LARGE = 1 << 13  # a parameter of so many elements has chunks of its own


class Scratch:
    """Memory for what is computed on the way, one for all chunks of a dtype.

    Args:
        dtype: of the masters.
    """

    def __init__(self, dtype):
        self.gradient, self.a, self.b = (np.empty(SIZE, dtype) for _ in range(3))
        self.rounding = half.Rounding(SIZE)


class _Chunk:
    """What both kinds of chunk have. All arrays are flat.

    Attributes:
        master: masters.
        states: tuple of arrays in the order of the expression's states.
    """

    def gradient(self, out):
        """Writes the unscaled gradient to ``out``, and returns it."""
        for source, inverse, part in self._sources:
            _unscale(source, inverse, out[part])
        return out

    def is_finite(self, out):
        """Whether the unscaled gradient is finite; ``out`` is scratch."""
        return all(_is_finite(source, inverse, out[part]) for source, inverse, part in self._sources)

    def forget(self):
        """Lets go of the gradient."""
        self._sources = ()


class Part(_Chunk):
    """A part of one large parameter.

    Args:
        entry: :class:`~mixprec.update.entries.Entry`.
        part: slice of the memory of its arrays.
    """

    def __init__(self, entry, part):
        self._part = part
        names = entry.expression.states if entry.expression else ()
        self.master = flat(entry.master.array)[part]
        self.states = tuple(flat(entry.rule.state[name])[part] for name in names)
        self._copy = _Copy(flat(entry.param.array)[part]) if entry.has_copy else None

    def follow(self):
        """Takes over what was written into the parameter since it was last rounded."""
        if self._copy is not None:
            self._copy.reaches(self.master)

    def load(self, gradients, inverses):
        """Takes the gradient, flat, in a sequence of one, and what to multiply it by, likewise or a float."""
        (gradient,) = gradients
        inverse = inverses if isinstance(inverses, float) else inverses[0]
        self._sources = [(gradient[self._part], inverse, slice(None))]

    def store(self, rounding):
        """Rounds the masters into the parameter."""
        if self._copy is not None:
            self._copy.round(self.master, rounding)


class Pack(_Chunk):
    """Small parameters of one group, side by side, those with a float16 copy first.

    The states of their rules become views of the pack's. Masters are copied in and out, as others may hold them.

    Args:
        entries: :class:`~mixprec.update.entries.Entry` of each.
    """

    def __init__(self, entries):
        self._copies = sum(entry.has_copy for entry in entries)
        masters = [entry.master.array for entry in entries]
        params = [entry.param.array for entry in entries[: self._copies]]
        self._sizes = [array.size for array in masters]
        self.master = np.concatenate(list(map(flat, masters)))
        self._to_masters = _memory(masters, self.master)
        names = entries[0].expression.states if entries[0].expression else ()
        self.states = tuple(np.empty_like(self.master) for _ in names)
        for name, state in zip(names, self.states, strict=True):
            for entry, view in zip(entries, _views(state, masters), strict=True):
                view[...] = entry.rule.state[name]
                entry.rule.state[name] = view
        copied = sum(self._sizes[: self._copies])
        self._parts = [slice(copied), slice(copied, None)]
        if self._copies:
            self._copy = _Copy(np.concatenate(list(map(flat, params))))
            self._to_params = _memory(params, self._copy.array)

    def follow(self):
        """Takes the masters in, and over what was written into the parameters since they were last rounded."""
        _gather(self._to_masters)
        if self._copies:
            _gather(self._to_params)
            if self._copy.reaches(self.master[self._parts[0]]):
                _scatter(self._to_masters)

    def load(self, gradients, inverses):
        """Takes the gradients of the parameters and what to multiply each of them by, or one float for all."""
        if not isinstance(inverses, float):
            with np.errstate(over="ignore"):  # that of a scale below what the dtype can divide by
                inverses = np.repeat(np.array(inverses, self.master.dtype), self._sizes)
        self._sources = []
        for gradients_of_part, part in zip(
            (gradients[: self._copies], gradients[self._copies :]), self._parts, strict=True
        ):
            source = np.concatenate(gradients_of_part, axis=None) if gradients_of_part else None
            if source is not None and source.size:
                self._sources.append((source, inverses if isinstance(inverses, float) else inverses[part], part))

    def store(self, rounding):
        """Copies the masters back, and rounds them into the parameters."""
        _scatter(self._to_masters)
        if self._copies:
            self._copy.round(self.master[self._parts[0]], rounding)
            _scatter(self._to_params)


class _Copy:
    """The float16 copy of masters that the model computes with, and its shadow, which tells if somebody wrote to it."""

    def __init__(self, copy):
        self.array = copy
        self._shadow = copy.copy()

    def reaches(self, master):
        """Takes over into ``master`` what was written into the copy; returns whether there was anything."""
        if self.array.tobytes() == self._shadow.tobytes():  # the quickest way to compare, in spite of two copies
            return False
        self._shadow[...] = self.array
        with np.errstate(over="ignore"):
            written = self.array.view(np.int16) != master.astype(np.float16).view(np.int16)
        np.copyto(master, self.array, where=written)
        return True

    def round(self, master, rounding):
        """Rounds ``master`` into the copy."""
        rounding(master, self.array)
        np.copyto(self._shadow, self.array)


def chunks_of(entries):
    """Returns ``[(chunk, its entries)]`` for entries of one group."""
    chunks, small, filled = [], [], 0
    for entry in sorted(entries, key=lambda entry: not entry.has_copy):
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


def _unscale(source, inverse, out):
    """Writes ``source * inverse`` to ``out``; the inverse is a float or an array."""
    if source.dtype != np.float16:
        np.multiply(source, inverse, out=out)
    elif isinstance(inverse, float) and inverse <= half.LARGEST_FACTOR:
        half.widen(source, out, inverse)
    else:
        np.copyto(out, source)
        np.multiply(out, inverse, out=out)


def _is_finite(source, inverse, out):
    is_half = source.dtype == np.float16
    finite = half.is_finite(source) if is_half else bool(np.isfinite(source).all())
    largest = inverse if isinstance(inverse, float) else inverse.max()
    fits = source.dtype.itemsize <= out.dtype.itemsize
    if not finite or (fits and largest <= (half.LARGEST_FACTOR if is_half else 1)):
        return finite
    _unscale(source, inverse, out)  # what is finite may overflow
    return bool(np.isfinite(out).all())


def _views(memory, arrays):
    """Returns views of memory, one behind the other, in the shapes of ``arrays`` and with their orders of axes."""
    views, start = [], 0
    for array in arrays:
        views.append(shaped(memory[start : start + array.size], array))
        start += array.size
    return views


def _memory(arrays, memory):
    """Returns ``[(memory of an array, its part of the common memory)]`` as buffers: quicker to copy than arrays are."""
    return [(flat(array).data, flat(view).data) for array, view in zip(arrays, _views(memory, arrays), strict=True)]


def _scatter(pairs):
    for array, part in pairs:
        array[:] = part


def _gather(pairs):
    for array, part in pairs:
        part[:] = array
