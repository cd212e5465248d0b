"""A device on which time is simulated: it computes, copies out and copies back in three queues; for the real executor.

Arrays are those of NumPy, and small. :class:`Work` takes as long as it says, and all arrays that it makes count.
"""

import contextlib
import copy
import weakref

import chainer
import numpy as np

from mixprec.backends.copy_interface import Copies
from mixprec.backends.file_copies import FileCopies


class SimulatedBus(FileCopies):
    """Copies whose time is simulated, and which are made at once.

    Args:
        out, back: bytes per second.
        latency: seconds of each copy.
    """

    def __init__(self, out, back, latency):  # no file is made
        self._rates = out, back, latency
        self.now = 0.0
        self._free_at = {"out": 0.0, "back": 0.0}
        self.used = self._peak = 0

    def compute(self, seconds):
        """Lets the device compute for a time."""
        self.now += seconds

    def counts(self, array):
        """Returns an array, whose memory counts as long as it is there."""
        self.used += array.nbytes
        self._peak = max(self._peak, self.used)
        weakref.finalize(array, self._goes, array.nbytes).atexit = False
        return array

    def _goes(self, size):
        self.used -= size

    def _copy(self, way, after, size):
        rate = self._rates[way == "back"]
        self._free_at[way] = max(self._free_at[way], self.now, after) + self._rates[2] + size / rate
        return self._free_at[way]

    def take(self, size):
        return {"size": size}

    def give(self, slot):
        """There is nothing to give back."""

    def trim(self):
        """Likewise."""

    def out(self, root, slot):
        slot["bytes"] = root.tobytes()
        slot["done"] = self._copy("out", 0.0, slot["size"])
        return slot["done"]

    def back(self, slot):
        root = self.counts(np.empty(slot["size"], np.uint8))
        root[:] = np.frombuffer(slot["bytes"], np.uint8)
        return root, self._copy("back", slot["done"], slot["size"])

    def wait(self, mark):
        self.now = max(self.now, mark)

    def join(self):
        """All copies that are waited for are."""

    @contextlib.contextmanager
    def measuring(self):
        yield

    def peak(self):
        peak, self._peak = self._peak, self.used
        return peak

    def allocated(self):
        return self.used

    def tick(self):
        return self.now

    def total(self):
        return 1 << 40

    def bus(self):
        return self._rates

    def close(self):
        """Nothing is open."""


assert issubclass(SimulatedBus, Copies)


class Work(chainer.FunctionNode):
    """A function whose gradient needs its inputs, or its output.

    Args:
        bus: :class:`SimulatedBus`.
        size: number of elements of the result.
        forward_seconds, backward_seconds: that it takes.
        retains_output: whether it retains its output in place of its inputs.
        is_repeatable: whether it may be computed again.
    """

    def __init__(self, bus, size, forward_seconds, backward_seconds, *, retains_output, is_repeatable):
        self._bus, self._size = bus, size
        self._forward, self._backward = forward_seconds, backward_seconds
        self._retains_output, self._is_repeatable = retains_output, is_repeatable

    def again(self):
        return copy.copy(self) if self._is_repeatable else None

    def forward(self, inputs):
        self._bus.compute(self._forward)
        y = sum(np.resize(x, self._size) for x in inputs)
        np.tanh(y, out=y)
        if self._retains_output:
            self.retain_outputs((0,))
        else:
            self.retain_inputs(tuple(range(len(inputs))))
        return (self._bus.counts(np.array(y, np.float64)),)

    def backward(self, indexes, grads):
        self._bus.compute(self._backward)
        (gy,) = grads
        kept = self.get_retained_outputs() if self._retains_output else self.get_retained_inputs()
        factor = sum(np.resize(each.array, self._size) for each in kept)
        shapes = [self.inputs[index].shape[0] for index in indexes]
        return tuple(
            chainer.Variable(self._bus.counts(np.resize(gy.array * (1 + factor), size)), requires_grad=False)
            for size in shapes
        )
