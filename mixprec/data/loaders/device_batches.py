"""Batches of DALI on a GPU as arrays of CuPy: the same memory, ordered by CuPy's current stream."""

import collections
import itertools
import sys

import numpy as np

from mixprec.backends.launch import CupyLauncher
from mixprec.data.loaders.readers import labels_of


class DeviceBatches:
    """Takes batches from a DALI pipeline on a GPU, and keeps their memory until its last use is done.

    Only labels of WebDataset go through the host. The host does not wait for the GPU: CuPy's current stream waits for
    DALI's work on the batch. DALI reuses memory as soon as its last array is gone, while the GPU may still have work
    queued that reads it. So each batch is kept here until no other code holds an array of it and, after that, the work
    is done that was in the current stream when the next batch was requested. This includes the copy into the input of a
    captured step, which the current stream waits for (:meth:`mixprec.graph_capture.cuda_graphs.CupyGraphs.on_stream`).

    Args:
        device_id (int): Number of the GPU.
        most (int): Maximum number of batches that are kept though no other code holds them. A host that is further
            ahead waits for the oldest of them, and for no later work.
    """

    def __init__(self, device_id, most):
        import cupy  # not at the top: mixprec runs without it

        self._cupy = cupy
        self._device = cupy.cuda.Device(device_id)
        self._launcher = CupyLauncher(device_id)
        self._most = most
        self._given = []  # arrays of each batch that was still held elsewhere when last seen
        self._kept = collections.deque()  # (arrays, event after their use), the oldest first

    def take(self, pipeline):
        """Returns the pipeline's next batch.

        Args:
            pipeline (nvidia.dali.Pipeline): Pipeline with outputs (images, labels).

        Returns:
            ``(x, t)``: x (B, H, W, C), t int32 (B,), both on the device.
        """
        with self._device:
            stream = self._cupy.cuda.get_current_stream()
            self._keep(stream)
            pixels, labels = pipeline.run(stream)
            x = self._cupy.from_dlpack(pixels.as_tensor())
            if hasattr(labels, "device_id"):  # TensorListGPU has one
                t = self._cupy.from_dlpack(labels.as_tensor())
            else:
                numbers = labels_of(labels)[:, None]
                t = self._cupy.empty(numbers.shape, numbers.dtype)
                self._launcher.upload(np.ascontiguousarray(numbers).view(np.uint8), t)
            self._given.append((x, t))
        return x, t[:, 0]

    def leave_out(self, pipeline):
        """Runs the pipeline for an unused batch."""
        with self._device:
            pipeline.run(self._cupy.cuda.get_current_stream())

    def finish(self):
        """Waits until the GPU has done the work in the current stream; no batch is kept any more."""
        with self._device:
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(self._cupy.cuda.get_current_stream())
            event.synchronize()
        self._given, self._kept = [], collections.deque()

    def _keep(self, stream):
        free = [not _is_held(arrays) for arrays in self._given]
        if any(free):
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            self._kept.append((list(itertools.compress(self._given, free)), event))
            self._given = [arrays for arrays, is_free in zip(self._given, free, strict=True) if not is_free]
        while self._kept and self._kept[0][1].done:
            self._kept.popleft()
        while len(self._kept) >= self._most:
            _, event = self._kept.popleft()
            event.synchronize()


def _is_held(arrays):
    """Returns ``True`` if an array, or a view with it as ``base``, is held by more than the given tuple."""
    return _references(arrays) > _references((object(),))


def _references(objects):
    return max(sys.getrefcount(each) for each in objects)
