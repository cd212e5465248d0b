"""Temporary memory of engines, and of cuBLAS."""

import threading

from mixprec.backends.capture_error import CaptureError

_PER_THREAD = 2  # cudaStreamPerThread: the address of as many streams as there are threads


class Workspaces:
    """One buffer for each stream of a device, shared by all plans: work on a stream is done one after the other.

    A buffer grows to the largest need of a plan, which :attr:`mixprec.backends.cudnn.settings.Settings.workspace`
    limits. cuBLAS has its own buffers.

    Args:
        device: :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`.
        library: name of the library that uses it, for messages.
    """

    def __init__(self, device, library="cuDNN"):
        self._device, self._library = device, library
        self._buffers = {}
        self._captured = []  # buffers whose addresses are in CUDA graphs

    def address(self, stream, size):
        """Returns the address of at least ``size`` bytes for work on a stream, the current one.

        Raises:
            CaptureError: the buffer would have to grow while the stream captures a CUDA graph.
        """
        if not size:
            return 0
        key = (stream, threading.get_ident()) if stream == _PER_THREAD else stream
        buffer = self._buffers.get(key)
        capturing = self._device.capturing()
        if buffer is None or buffer.size < size:
            if capturing:
                raise CaptureError(
                    f"{self._library}: a workspace of {size} bytes is needed on this stream, and "
                    f"{0 if buffer is None else buffer.size} bytes are there; none can be made while a CUDA graph "
                    "captures: run the step eagerly first, on the same stream"
                )
            buffer = self._buffers[key] = _Buffer(self._device.allocate(size), size)
        if capturing and not buffer.captured:
            # The graph holds the address for good: the buffer stays, even after a larger one has replaced it.
            buffer.captured = True
            self._captured.append(buffer)
        return buffer.memory.ptr


class _Buffer:
    __slots__ = ("captured", "memory", "size")

    def __init__(self, memory, size):
        self.memory, self.size, self.captured = memory, size, False
