"""Graphs of a device that computes nothing: what was noted while one was captured is noted again by each launch."""

import contextlib
import types

import numpy as np

from benchmarks.recording_device.arrays import Array, conversions_stay
from mixprec.backends import device_log
from mixprec.backends.memory import axes
from mixprec.backends.wgrad_stream import SideStream


def _nothing(*_):
    """Nothing waits, as nothing is computed."""


_STREAMS = types.SimpleNamespace(second=contextlib.nullcontext, fork=_nothing, mark=_nothing, wait=_nothing)


class Graphs:
    """In place of :class:`~mixprec.graph_capture.cuda_graphs.CupyGraphs`.

    Args:
        launcher: :class:`~benchmarks.recording_device.launcher.Launcher` of the device.

    Attributes:
        side_stream: :class:`~mixprec.backends.wgrad_stream.SideStream`.
    """

    def __init__(self, launcher):
        self._launcher = launcher
        self.side_stream = SideStream(_STREAMS)

    @property
    def pool_bytes(self):
        """Bytes of device memory that graphs have, whether an array holds it or not."""
        return Array.memory.private.bytes

    def on_stream(self):
        """Inside of the block Chainer's ``xp.asarray`` leaves arrays on the device; all is done at once."""
        return conversions_stay()

    def capture(self, function):
        """See :meth:`CupyGraphs.capture <mixprec.graph_capture.cuda_graphs.CupyGraphs.capture>`."""
        with Array.memory.capturing(), device_log.recording() as taken:
            result = function()
        return Graph([note for note in taken if note.kind != "memory"]), result

    def watching(self):
        """Does nothing: new memory is always noted."""
        return contextlib.nullcontext()

    def empty_like(self, array):
        """Returns a new array on the device, with anything in it, that lies in memory as another one does."""
        return Array.memory.new(array.shape, array.dtype, np.empty_like(array, subok=False).strides).view(Array)

    def copy(self, source, target):
        """Copies an array of the host or the device into one of :meth:`empty_like`."""
        if isinstance(source, Array):
            order = axes(target)  # as one copy of memory, if both lie in it alike
            target.transpose(order)[...] = source.transpose(order)
        else:
            dense = np.ascontiguousarray(source.transpose(axes(target)))
            self._launcher.upload(dense.reshape(-1).view(np.uint8), target)

    def sync(self):
        """Does nothing."""

    def release(self):
        """Does nothing."""


class Graph:
    """What was noted while a step was captured.

    Args:
        taken: list of :class:`~mixprec.backends.device_log.Record`.

    Attributes:
        notes: the same.
    """

    def __init__(self, taken):
        self.notes = taken

    def launch(self):
        """Takes the notes once more."""
        for note in self.notes:
            with device_log.asked_by(note.primitive):
                device_log.record(note.kind, note.name, *note.arguments)
