"""The position of an iterator, in the attributes that Chainer's trainer reads."""

from chainer import dataset


class Position(dataset.Iterator):
    """The position of an iterator, which follows from the number of batches delivered.

    Args:
        epochs (Epochs or Stages): Division of batches into epochs.
    """

    def __init__(self, epochs):
        self._epochs = epochs
        self._delivered = epochs.batches_before  # since the very beginning

    def make_way(self):
        """Ends for good, while the last batches may still be in use; another iterator continues."""
        self.finalize()

    @property
    def delivered(self):
        """Number of batches since the very beginning."""
        return self._delivered

    @property
    def epoch(self):
        return self._epochs.at(self._delivered).epoch(self._delivered)

    @property
    def epoch_detail(self):
        return self._epochs.at(self._delivered).detail(self._delivered)

    @property
    def previous_epoch_detail(self):
        last = self._delivered - 1
        return self._epochs.at(last).detail(last) if self._delivered else None

    @property
    def images_of_all(self):
        """Number of images that count in the last batch of all shards together."""
        last = self._delivered - 1
        return self._epochs.at(last).count_of_all(last)

    @property
    def is_new_epoch(self):
        return self._epochs.at(self._delivered).is_new(self._delivered)
