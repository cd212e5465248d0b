"""The base class of the steps that rows run: training steps on one batch that lies on the device."""

import pathlib

LR = 1e-5  # of all rows: so small that the batch is not learnt by heart, and all blocks compute on the same numbers


class Step:
    """Training steps; a subclass for each framework and kind of device. One instance lives in the process of a row.

    A call runs one step; on a GPU it need not wait for it. The caller runs them in blocks: :meth:`warm_up`, timed
    calls, :meth:`peak`, :meth:`release`. In between other rows have the device.

    Attributes:
        kept: bytes of the arrays that a forward pass keeps for the backward pass, without parameters; ``None`` if not
            known.
    """

    kept = None

    def __call__(self):
        """Runs one step."""
        raise NotImplementedError

    def warm_up(self):
        """Runs steps, before each block, until the next ones do nothing for the first time."""
        self()

    def synchronize(self):
        """Waits until the device has done all that was asked of it; a CPU has when the call returns."""

    def why_eager(self):
        """Returns why a step that is to be captured is not the launch of a graph, in one line; ``""`` if it is."""
        return ""

    def release(self):
        """Gives back all memory of the device but what outlives a step: parameters, gradients, states, the batch."""

    def peak(self):
        """Returns the most bytes of the device that :meth:`warm_up` has needed since :meth:`release`.

        On a CPU it is :func:`memory_of_process`.
        """
        raise NotImplementedError


def memory_of_process():
    """Returns the most bytes of memory that this process has ever had.

    It is the one of Linux that begins with the process: ``ru_maxrss`` begins with what the parent had.
    """
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) << 10
    raise RuntimeError("/proc/self/status has no VmHWM")
