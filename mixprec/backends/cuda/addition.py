"""Addition on a CUDA device: one launch."""

from mixprec.backends.cuda.base import Base


class Additions(Base):
    """The addition of :class:`~mixprec.backends.primitives.Primitives`."""

    def add(self, a, b):
        return self._elementwise("addition", "add", [a, b], a.size)
