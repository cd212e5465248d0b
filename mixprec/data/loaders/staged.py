"""Training in stages with different image and batch sizes: one loader after the other."""

from chainer.serializer import Deserializer

from mixprec.data.loaders.position import Position


class StagedIterator(Position):
    """The batches of several iterators, each of which continues where the previous one ends; it repeats for ever.

    Only one exists at a time. The position counts batches of all of them, and a snapshot has the form of the stage's
    own iterator.

    Args:
        stages (Stages): Assignment of batches to stages.
        make (list of callable): Makes the iterator of each stage, with the same ``before`` as its ``Epochs``.
    """

    repeat = True

    def __init__(self, stages, make):
        super().__init__(stages)
        self._make = make
        self._made = None, None  # a stage and its iterator

    @property
    def stage(self):
        """Number of the stage of the last batch, from 0; of the first batch, before that is there."""
        return self._epochs.of(max(0, self._delivered - 1))

    def __next__(self):
        iterator = self._iterator()
        try:
            return iterator.next()
        finally:  # Ctrl-C may come when a batch is out
            self._delivered = iterator.delivered

    def reset(self):
        """Rewinds to the very beginning."""
        self.skip_to(0)

    def skip_to(self, delivered):
        """Goes to a position; the loader of its stage starts again if it has its own state."""
        self.finalize()
        self._delivered, self._made = delivered, (None, None)

    def finalize(self):
        """Ends threads and processes; a later ``next()`` or ``serialize()`` continues from the position."""
        if self._made[1] is not None:
            self._made[1].finalize()

    def serialize(self, serializer):
        """Saves or restores the position.

        Raises:
            DataError: The snapshot belongs to an iterator over other images or with other settings; it says which.
        """
        if isinstance(serializer, Deserializer):
            self._delivered = int(serializer("delivered", self._delivered))
        self._iterator().serialize(serializer)

    def _iterator(self):
        """The iterator of the next batch."""
        wanted = self._epochs.of(self._delivered)
        if self._made[0] != wanted:
            if self._made[1] is not None:
                self._made[1].make_way()
            self._made = wanted, self._make[wanted]()
        return self._made[1]
