"""What carries arrays between ranks, as :mod:`~mixprec.distributed.exchange` sees it.

:class:`~mixprec.distributed.mpi_transport.MpiTransport` implements it for arrays of NumPy,
:class:`~mixprec.distributed.nccl_transport.NcclTransport` for those of a device as well.
"""

import abc


class Transport(abc.ABC):
    """Sums and broadcasts of arrays over ranks.

    All ranks call the same methods in the same order, with arrays of the same sizes and dtypes.

    Attributes:
        rank: number of this process.
        size: number of processes.
        shares_order: whether others ask for sums in the same order, in the middle of a step: all ranks then have to
            start sums at the same places of the program, and wait until they may.
    """

    rank: int
    size: int
    shares_order = False

    def places(self):
        """Returns what was asked for since the last call, a list of str, where :attr:`shares_order`."""
        return []

    def join(self):  # noqa: B027
        """What the current stream is asked from now on comes after all sums of arrays of a device."""

    @abc.abstractmethod
    def start(self, array):
        """Starts to add up an array over all ranks, in place; returns a :class:`Work` at once.

        Until that is joined, nothing may read or write the array.

        Args:
            array: contiguous, of float16, bfloat16, float32 or float64. The sum has the same bits on all ranks.
        """

    def progress(self):  # noqa: B027
        """Lets sums that are under way go on, if they do so only when they are asked; called in the backward pass."""

    @abc.abstractmethod
    def broadcast(self, array):
        """Writes the array of rank 0 into those of all ranks, contiguous ones."""

    @abc.abstractmethod
    def gather(self, value):
        """Returns the values of all ranks, a list in their order. They are small Python objects."""


class Work(abc.ABC):
    """A sum that is under way."""

    @property
    @abc.abstractmethod
    def done(self):
        """Whether the sum is there, or has failed; does not wait."""

    @abc.abstractmethod
    def join(self):
        """Waits until the sum is there. Raises what has happened to it meanwhile."""
