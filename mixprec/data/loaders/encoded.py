"""Encoded images for a DALI pipeline of one of several shards, read ahead in threads.

DALI's own readers have their own order, and divide it into runs: batches of all shards together would differ from the
batches of one process. Here the order is :class:`~mixprec.data.loaders.order.Order`.
"""

import collections
import concurrent.futures

import numpy as np


class EncodedBatches:
    """Two sources for DALI's ``external_source``, called with the number of DALI's iteration once for each batch.

    Args:
        images (ImageFiles or ImageShards): Source of the images.
        order (Order): Order of the images.
        first (int): Number of the batch of DALI's first iteration.
        threads (int): Threads that read.
        ahead (int): Batches that are read ahead.
    """

    def __init__(self, images, order, *, first, threads, ahead):
        self._images = images
        self._order = order
        self._first = first
        self._began = None  # DALI's first iteration, which after a resume is not 0
        self._ahead = ahead
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "mixprec-encoded")
        self._coming = collections.deque()  # futures of each batch, from the next iteration on

    def encoded(self, iteration):
        """Returns the encoded images, a list of uint8 arrays.

        Raises:
            DataError: A file cannot be read.
        """
        while len(self._coming) <= self._ahead:
            indices = self._indices(iteration + len(self._coming))
            self._coming.append([self._pool.submit(self._images.read, index) for index in indices])
        return [np.frombuffer(future.result(), np.uint8) for future in self._coming.popleft()]

    def labels(self, iteration):
        """Returns their labels, int32 (B, 1)."""
        return self._images.labels[self._indices(iteration), None].astype(np.int32)

    def _indices(self, iteration):
        if self._began is None:
            self._began = iteration
        return self._order.indices(self._first + iteration - self._began)[1]
