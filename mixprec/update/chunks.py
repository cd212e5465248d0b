"""Parameters on NumPy in chunks, small enough for a processor's second-level cache with all that is computed from them.

A chunk is a part of one large parameter, worked on where it is, or many small ones, copied side by side and back.
"""

import numpy as np

from mixprec.update import half

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
        source, inverse = self._source, self._inverse
        if source.dtype != np.float16:
            np.multiply(source, inverse, out=out)
        elif isinstance(inverse, float) and inverse <= half.LARGEST_FACTOR:
            half.widen(source, out, inverse)
        else:
            np.copyto(out, source)
            np.multiply(out, inverse, out=out)
        return out

    def is_finite(self, out):
        """Whether the unscaled gradient is finite; ``out`` is scratch."""
        if np.max(self._inverse) > 1:  # a finite gradient may overflow
            return bool(np.isfinite(self.gradient(out)).all())
        if self._source.dtype == np.float16:
            return half.is_finite(self._source)
        return bool(np.isfinite(self._source).all())


class _Copy:
    """The float16 copy of masters that the model computes with, and its shadow, which tells if somebody wrote to it."""

    def __init__(self, copy):
        self.array = copy
        self._shadow = copy.copy()

    def reaches(self, master):
        """Takes over into ``master`` what was written into the copy; returns whether there was anything."""
        if np.array_equal(self.array.view(np.int16), self._shadow.view(np.int16)):
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


class Part(_Chunk):
    """A part of one large parameter.

    Args:
        entry: :class:`~mixprec.update.entries.Entry` whose arrays are contiguous.
        part: slice of its flat arrays.
    """

    def __init__(self, entry, part):
        self._part = part
        names = entry.expression.states if entry.expression else ()
        self.master = entry.master.array.reshape(-1)[part]
        self.states = tuple(entry.rule.state[name].reshape(-1)[part] for name in names)
        self._copy = None
        if entry.param.dtype != entry.master.dtype:
            self._copy = _Copy(entry.param.array.reshape(-1)[part])

    def follow(self):
        """Takes over what was written into the parameter since it was last rounded."""
        if self._copy is not None:
            self._copy.reaches(self.master)

    def load(self, gradients, inverses):
        """Takes the gradient of the parameter and what to multiply it by, each in a list of one."""
        self._source, self._inverse = gradients[0].reshape(-1)[self._part], inverses[0]

    def store(self, rounding):
        """Rounds the masters into the parameter."""
        if self._copy is not None:
            self._copy.round(self.master, rounding)


class Pack(_Chunk):
    """Small parameters of one dtype and one group, side by side.

    The states of their rules become views of the pack's. Masters are copied in and out, as others may hold them.

    Args:
        entries: :class:`~mixprec.update.entries.Entry` of each.
    """

    def __init__(self, entries):
        self._masters = [entry.master.array for entry in entries]
        self._params = [entry.param.array for entry in entries]
        self._sizes = [array.size for array in self._masters]
        self.master = np.concatenate(self._masters, axis=None)
        self._master_views = self._views(self.master)
        names = entries[0].expression.states if entries[0].expression else ()
        self.states = tuple(np.empty_like(self.master) for _ in names)
        for name, state in zip(names, self.states, strict=True):
            for entry, view in zip(entries, self._views(state), strict=True):
                view[...] = entry.rule.state[name]
                entry.rule.state[name] = view
        self._copy = None
        if entries[0].param.dtype != entries[0].master.dtype:
            self._copy = _Copy(np.concatenate(self._params, axis=None))
            self._copy_views = self._views(self._copy.array)

    def follow(self):
        """Takes the masters in, and over what was written into the parameters since they were last rounded."""
        np.concatenate(self._masters, axis=None, out=self.master)
        if self._copy is not None:
            np.concatenate(self._params, axis=None, out=self._copy.array)
            if self._copy.reaches(self.master):
                _scatter(self._master_views, self._masters)

    def load(self, gradients, inverses):
        """Takes the gradients of the parameters and what to multiply them by."""
        self._source = np.concatenate(gradients, axis=None)
        self._inverse = inverses[0]
        if inverses.count(self._inverse) != len(inverses):
            self._inverse = np.repeat(np.array(inverses, self.master.dtype), self._sizes)

    def store(self, rounding):
        """Copies the masters back, and rounds them into the parameters."""
        _scatter(self._master_views, self._masters)
        if self._copy is not None:
            self._copy.round(self.master, rounding)
            _scatter(self._copy_views, self._params)

    def _views(self, flat):
        ends = np.cumsum(self._sizes).tolist()
        return [
            flat[end - array.size : end].reshape(array.shape) for end, array in zip(ends, self._masters, strict=True)
        ]


def chunks_of(entries):
    """Returns ``[(chunk, its entries)]`` for entries of one dtype and one group."""
    chunks, small, filled = [], [], 0
    for entry in entries:
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


def _scatter(views, arrays):
    for view, array in zip(views, arrays, strict=True):
        array[...] = view
