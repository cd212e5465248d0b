"""The interface for sending arrays between ranks, which :mod:`~mixprec.distributed.exchange` uses.

:class:`~mixprec.distributed.mpi_transport.MpiTransport` implements it for NumPy arrays,
:class:`~mixprec.distributed.nccl_transport.NcclTransport` also for arrays on a device.
"""

import abc


class Transport(abc.ABC):
    """Sums and broadcasts of arrays over ranks.

    All ranks call the same methods in the same order, with arrays of the same sizes and dtypes.

    Attributes:
        rank: number of this process.
        size: number of processes.
        shares_order: whether other code also starts sums in the middle of a step, which must be in the same order: all
            ranks must then start sums at the same points of the program, and wait until they may.
    """

    rank: int
    size: int
    shares_order = False

    def take_log(self):
        """Returns the log of sums since the last call, a list of str, if :attr:`shares_order`."""
        return []

    def join(self):  # noqa: B027
        """Makes later work on the current stream wait for all sums of device arrays."""

    @abc.abstractmethod
    def start(self, array):
        """Starts to sum an array over all ranks, in place; returns a :class:`Work` at once.

        Until that is joined, nothing may read or write the array.

        Args:
            array: contiguous array in float16, bfloat16, float32 or float64. The sum is bitwise equal on all ranks.
        """

    def progress(self):  # noqa: B027
        """Advances running sums, if they need it; called in the backward pass."""

    @abc.abstractmethod
    def broadcast(self, array):
        """Copies a contiguous array from rank 0 to all ranks, in place."""

    @abc.abstractmethod
    def gather(self, value):
        """Returns a list of the values of all ranks, small Python objects, in their order."""


class Work(abc.ABC):
    """A running sum."""

    @property
    @abc.abstractmethod
    def done(self):
        """Whether the sum is done, or has failed; does not wait."""

    @abc.abstractmethod
    def join(self):
        """Waits for the sum. Raises the error if it has failed."""
