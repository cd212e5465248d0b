"""GPU arrays over NCCL; NumPy arrays and Python objects over MPI.

:class:`~mixprec.optimizer.ranks.Ranks` makes one when parameters are on a device. The host waits for MPI only: device
work that is launched after :meth:`Work.join <mixprec.distributed.transport.Work.join>` runs after the sum.
"""

from mixprec.backends import is_of_numpy
from mixprec.distributed.transport import Transport, Work


class NcclTransport(Transport):
    """NCCL for arrays on a device, combined with another transport.

    Args:
        of_host: :class:`~mixprec.distributed.mpi_transport.MpiTransport`.
        nccl: :class:`~mixprec.backends.nccl.Nccl` of the same processes.
    """

    shares_order = True  # batch normalizations over several processes also use NCCL

    def __init__(self, of_host, nccl):
        self._of_host, self._nccl = of_host, nccl
        self.rank, self.size = of_host.rank, of_host.size

    def take_log(self):
        """See :meth:`~mixprec.distributed.transport.Transport.take_log`."""
        return self._nccl.asked.taken()

    def join(self):
        """See :meth:`~mixprec.distributed.transport.Transport.join`."""
        self._nccl.join()

    def start(self, array, fill=None, held=()):
        """See :meth:`~mixprec.distributed.transport.Transport.start`.

        Args:
            array: array on the host or on the device.
            fill: for an array on the device: function without arguments that first writes into it, on NCCL's stream.
            held: list of arrays that ``fill`` reads.
        """
        if is_of_numpy(array):
            return self._of_host.start(array)
        self._nccl.asked.add(f"the sum of {array.size} gradients in {array.dtype.name}")
        with self._nccl.beside(array, *held):
            if fill is not None:
                fill()
            self._nccl.all_reduce(array)
        return _Sum(self._nccl)

    def progress(self):
        """See :meth:`~mixprec.distributed.transport.Transport.progress`."""
        self._of_host.progress()

    def broadcast(self, array):
        """See :meth:`~mixprec.distributed.transport.Transport.broadcast`."""
        if is_of_numpy(array):
            self._of_host.broadcast(array)
            return
        with self._nccl.beside(array):
            self._nccl.broadcast(array)
        self._nccl.join()

    def gather(self, value):
        """See :meth:`~mixprec.distributed.transport.Transport.gather`."""
        return self._of_host.gather(value)


class _Sum(Work):
    """A sum on NCCL's stream. Only the device knows when it is done."""

    done = True

    def __init__(self, nccl):
        self._nccl = nccl

    def join(self):
        self._nccl.join()
