"""Handles of a library, which belong to one device, and must not be used by two threads at once.

Callers of cuDNN or cuBLAS get the handle of their thread before each call.
"""

import threading

from mixprec.backends.capture_error import CaptureError


class Handles:
    """One handle for each thread, made when the thread first needs it.

    Handles are never destroyed, as this might happen while another thread captures a graph: the handle of an ended
    thread serves the next new thread.

    Args:
        frontend: the module of cuDNN's frontend, or an object with its ``create_handle`` and ``set_stream``.
        device: :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`.
        library: name of the library, for messages.
    """

    def __init__(self, frontend, device, library="cuDNN"):
        self._frontend, self._device, self._library = frontend, device, library
        self._local = threading.local()
        self._free = []  # (handle, stream) of threads that have ended

    def on(self, stream):
        """Returns the handle of this thread, with its work going to a stream from now on.

        Raises:
            CaptureError: the thread has none yet, and the current stream is capturing.
        """
        lease = getattr(self._local, "lease", None)
        if lease is None:
            lease = self._local.lease = self._lend()
        if lease.stream != stream:
            self._frontend.set_stream(handle=lease.handle, stream=stream)
            lease.stream = stream
        return lease.handle

    def _lend(self):
        try:
            handle, stream = self._free.pop()
        except IndexError:
            if self._device.capturing():
                raise CaptureError(
                    f"{self._library}: this thread has no handle yet and cannot make one while a CUDA graph captures; "
                    "run the step eagerly first, in the same thread"
                ) from None
            with self._device.current():
                handle, stream = self._frontend.create_handle(), None
        return _Lease(handle, stream, self._free)


class _Lease:
    """A handle that lives as long as its thread: thread-local objects are dropped with the thread."""

    __slots__ = ("_free", "handle", "stream")

    def __init__(self, handle, stream, free):
        self.handle, self.stream, self._free = handle, stream, free

    def __del__(self):
        self._free.append((self.handle, self.stream))
