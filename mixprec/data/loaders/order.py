"""The order of the images: a new one for each epoch of training, the same for any number of shards.

The Pillow loader asks for the indices of each batch, and DALI's loader does if there are several shards.
"""

import numpy as np


class Order:
    """The images of each batch of a shard.

    With ``repeats``, position p of an epoch has image number floor(p / repeats) of its permutation: an epoch has as
    many positions as there are images, and each of its images comes ``repeats`` times in sequence (Hoffer et al. 2020,
    arXiv:1901.09335; Berman et al. 2019, arXiv:1902.05509).

    Args:
        spec (BatchSpec): Seed, batch size, shard.
        images (int): Number of images in the whole data set.
    """

    def __init__(self, spec, images):
        self._spec = spec
        self._images = images
        self._epochs = spec.epochs(images)
        self._last = None, None  # the last epoch, and its permutation of the images

    def indices(self, number):
        """Returns the epoch of batch ``number`` and the indices of its images.

        With pad there are as many as the batch has positions, and at least one in any case: indices after the images
        that count are padding.
        """
        epoch, positions = self.positions(number)
        if not self._spec.train:
            return epoch, positions
        if self._last[0] != epoch:
            # RandomState: its numbers never change from a version of NumPy to the next.
            self._last = epoch, np.random.RandomState([self._spec.seed, epoch]).permutation(self._images)
        return epoch, self._last[1][positions // self._spec.augmentation.repeats]

    def positions(self, number):
        """Returns the epoch of batch ``number`` and the positions of its images in the order of the epoch."""
        begin, end = self._epochs.positions(number)
        end = begin + self._spec.batch_size if self._spec.last_batch == "pad" else max(end, begin + 1)
        return self._epochs.epoch(number) if self._spec.train else 0, np.arange(begin, end) % self._images
