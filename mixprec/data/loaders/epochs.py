"""The division of images into batches and epochs: everything follows from the number of batches delivered."""

import bisect
import dataclasses

from mixprec.data.loaders.typed import Typed

LAST_BATCH = ("partial", "drop", "pad")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard(Typed):
    """The part of the batches that one of several processes has, and the earlier stages.

    Attributes:
        shard (int): i, 0 to num_shards - 1.
        num_shards (int): n.
        epochs_before (int): Epochs of earlier stages of training, which had batches of another size.
        batches_before (int): Batches of those stages.

    Example:
        >>> from mixprec.data import Shard
        >>> Shard(shard=1, num_shards=4).num_shards  # the second of four processes
        4
    """

    shard: int = 0
    num_shards: int = 1
    epochs_before: int = 0
    batches_before: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs(Shard):
    """The batches of one shard of a data set.

    All shards deliver together, batch for batch, what one shard alone delivers with n times the batch size: batch b of
    an epoch has the images from ``n * batch_size * b`` on of the epoch's order. Of these R images shard i has the
    images from floor(R i / n) to floor(R (i + 1) / n). So all shards have equally many batches, and all except the last
    are full. ``last_batch`` determines the end of an epoch:

    - partial: each image comes exactly once; the last batch may be smaller, and has none in some shards if there are
      more shards than images left.
    - drop: images that do not fill a batch in all shards are left out of this epoch.
    - pad: all batches have full size; padding images, which do not count, fill the last one.

    Attributes:
        images (int): N, images in the whole data set.
        batch_size (int): Images per batch.
        last_batch (str): ``'partial'``, ``'drop'`` or ``'pad'``.
    """

    images: int
    batch_size: int
    last_batch: str = "partial"

    @property
    def batches(self):
        """Batches an epoch, in each shard."""
        full, rest = divmod(self.images, self._of_all)
        return full + (rest > 0 and self.last_batch != "drop")

    def positions(self, number):
        """Returns begin and end, in the order of an epoch, of the images of batch ``number`` that count.

        Batches are numbered from 0, for ever.
        """
        begin = self._place(number)[1] * self._of_all
        count = self.count_of_all(number)
        first, last = (count * shard // self.num_shards for shard in (self.shard, self.shard + 1))
        return begin + first, begin + last

    def count(self, number):
        """Returns the number of images of batch ``number`` that count, 0 to batch_size."""
        begin, end = self.positions(number)
        return end - begin

    def count_of_all(self, number):
        """Returns the number of images of batch ``number`` that count in all shards together, 1 or more."""
        return min(self._of_all, self.images - self._place(number)[1] * self._of_all)

    def epoch(self, delivered):
        """Returns the number of complete epochs after ``delivered`` batches."""
        return self._place(delivered)[0]

    def detail(self, delivered):
        """Returns the epochs after ``delivered`` batches, a float: complete ones, and the share of the images in this.

        It is the same in all shards. With drop the last batch of an epoch also counts for the images that are left out.
        """
        epoch, batch = self._place(delivered)
        return epoch + batch * self._of_all / self.images

    def is_new(self, delivered):
        """Returns whether the last of ``delivered`` batches has completed an epoch."""
        return delivered > 0 and self._place(delivered)[1] == 0

    def delivered(self, other, delivered):
        """Returns the number of batches here after which the images of another division of the data set are delivered.

        Args:
            other (Epochs): The other division.
            delivered (int): Its number of batches.

        Returns:
            int: ``None`` if that is in the middle of a batch here.
        """
        epoch, batch = other._place(delivered)
        number, rest = divmod(batch * other._of_all, self._of_all)
        return None if rest else self.begin(epoch) + number

    def begin(self, epoch):
        """Returns the number of batches before an epoch."""
        return self.batches_before + (epoch - self.epochs_before) * self.batches

    def at(self, number):
        """Returns these, as :meth:`Stages.at` does where there are stages."""
        return self

    def _place(self, number):
        """The epoch of a batch, and its number in the epoch."""
        epoch, batch = divmod(number - self.batches_before, self.batches)
        return self.epochs_before + epoch, batch

    @property
    def _of_all(self):
        return self.batch_size * self.num_shards


@dataclasses.dataclass(frozen=True)
class Stages:
    """Training in stages with different batch sizes.

    Attributes:
        epochs (tuple of Epochs): Epochs of each stage; the last one has no end.
    """

    epochs: tuple
    batches_before = 0

    def of(self, number):
        """Returns the number of the stage of batch ``number``."""
        return bisect.bisect_right([each.batches_before for each in self.epochs], number) - 1

    def at(self, number):
        """Returns the :class:`Epochs` of batch ``number``."""
        return self.epochs[self.of(number)]

    def delivered(self, other, delivered):
        """See :meth:`Epochs.delivered`; the other one has stages at the same epochs."""
        stage = other.of(delivered)
        return self.epochs[stage].delivered(other.epochs[stage], delivered)
