"""A group that NumPy updates, chunk by chunk: without the native library, and what that does not have."""

import numpy as np

from mixprec.optimizer.batch.chunks import LARGE, chunks_of
from mixprec.optimizer.batch.group import Group, picker


class ChunkGroup(Group):
    """See :class:`~mixprec.optimizer.batch.group.Group`.

    Args:
        members, count: as for it.
        scratch: :class:`~mixprec.optimizer.batch.chunks.Scratch`.
    """

    def __init__(self, members, count, scratch):
        super().__init__(members, count)
        self._scratch = scratch
        self._hooked_by = ()
        self._in_parts = [number for number, entry in members if entry.master.array.size >= LARGE]
        numbers = {id(entry): number for number, entry in members}
        self._chunks = [
            (chunk, picker([numbers[id(entry)] for entry in entries]))
            for chunk, entries in chunks_of([entry for _, entry in members])
        ]

    def load(self, gradients, inverses):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        for number in self._in_parts:
            gradients[number] = gradients[number].reshape(-1)  # a copy, if need be, for all parts
        one = isinstance(inverses, float)
        for chunk, pick in self._chunks:
            chunk.load(pick(gradients), inverses if one else pick(inverses))

    def follow(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        for chunk, _ in self._chunks:
            chunk.follow()

    def is_finite(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        return all(chunk.is_finite(self._scratch.gradient[: chunk.master.size]) for chunk, _ in self._chunks)

    def look(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        self._hooked_by = self._hook_numbers()
        super().look()

    def is_finite_after_hooks(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        return not self._hooks or all(np.isfinite(self._hooked(chunk)).all() for chunk, _ in self._chunks)

    def _update(self):
        a, b = self._scratch.a, self._scratch.b
        for chunk, _ in self._chunks:
            gradient = self._hooked(chunk)
            size = gradient.size
            self._formula.host(chunk.master, gradient, chunk.states, self._numbers, a[:size], b[:size])
            chunk.store(self._scratch.rounding)

    def _hooked(self, chunk):
        """Returns the gradient of a chunk after hooks, in scratch memory."""
        gradient = chunk.gradient(self._scratch.gradient[: chunk.master.size])
        for hook, numbers in zip(self._hooks, self._hooked_by, strict=True):
            hook.formula.host(chunk.master, gradient, numbers, self._scratch.a[: gradient.size])
        return gradient

    def forget(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        for chunk, _ in self._chunks:
            chunk.forget()
