"""The division of images into batches and epochs: everything follows from the number of batches delivered."""

import dataclasses

LAST_BATCH = ("partial", "drop", "pad")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs:
    """The batches of one shard of a data set.

    Shard i of n has the images from floor(N i / n) to floor(N (i + 1) / n) of each epoch's order. How an epoch ends is
    said by ``last_batch``:

    - partial: each image comes exactly once; the last batch may be smaller, but has at least one image. Where shards
      differ in size, the larger ones may have one batch more.
    - drop: all shards have as many batches as the smallest one can fill; the other images are left out of this epoch.
    - pad: all shards have as many batches as the largest one needs, all of full size; what is missing are padding
      images, which do not count.

    Attributes:
        images (int): N, images in the whole data set.
        batch_size (int): Images a batch.
        last_batch (str): ``'partial'``, ``'drop'`` or ``'pad'``.
        shard (int): i, 0 to num_shards - 1.
        num_shards (int): n.
    """

    images: int
    batch_size: int
    last_batch: str = "partial"
    shard: int = 0
    num_shards: int = 1

    @property
    def begin(self):
        """Place of the shard's first image in the order of an epoch."""
        return self.images * self.shard // self.num_shards

    @property
    def size(self):
        """Images in the shard."""
        return self.images * (self.shard + 1) // self.num_shards - self.begin

    @property
    def smallest(self):
        """Images in the smallest shard."""
        return self.images // self.num_shards

    @property
    def largest(self):
        """Images in the largest shard."""
        return -(-self.images // self.num_shards)

    @property
    def batches(self):
        """Batches an epoch."""
        if self.last_batch == "drop":
            return self.smallest // self.batch_size
        return -(-self._length // self.batch_size)

    def count(self, number):
        """Returns how many images of batch ``number`` count, 0 to batch_size; batches are numbered from 0, for ever.

        Only padding has batches with none, in shards that are smaller than others.
        """
        start = number % self.batches * self.batch_size
        return max(0, min(self.batch_size, self.size - start))

    def epoch(self, delivered):
        """Returns the number of epochs that are complete after ``delivered`` batches."""
        return delivered // self.batches

    def detail(self, delivered):
        """Returns the epochs after ``delivered`` batches, a float: complete ones, and the share of the images in this.

        The share is one of the shard's images. To be the same in all shards at the same batch, which they are to agree
        on where they train together, it is one of the largest shard's with pad, and one of the smallest's with drop;
        there the last batch of an epoch also counts for the images that are left out.
        """
        epoch, batch = divmod(delivered, self.batches)
        return epoch + batch * self.batch_size / self._length

    def is_new(self, delivered):
        """Returns whether the last one of ``delivered`` batches has completed an epoch."""
        return delivered > 0 and delivered % self.batches == 0

    @property
    def _length(self):
        return {"partial": self.size, "drop": self.smallest, "pad": self.largest}[self.last_batch]
