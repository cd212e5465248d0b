"""The table of parameters that the kernels in a CUDA graph read."""

from mixprec.backends.capture_error import CaptureError
from mixprec.optimizer.batch.table import Table


class GraphTable(Table):
    """A table that is made before a capture, and brought up to date before each launch of the graph.

    Its addresses stay as at the capture; hyperparameters and ``t`` may change.

    Args:
        table: the table of the last step; parameters and the number of arrays to restore are copied from it.
    """

    def __init__(self, table):
        super().__init__(table._entries, table._programs, table._launcher)
        self._is_complete = self._is_on_device = False
        self.look()
        self._build(self._values.size, table.restores)
        self._arrays, self._is_complete = self._all, True

    def refresh(self):
        """Uploads changes: everything before the first launch, then only hyperparameters that have changed.

        The caller has checked that rules still get their hyperparameters from the same objects.
        """
        flat = self._values.now()
        if self._is_on_device and flat == self._flat:
            return
        self._values.put(flat, self._host_values)
        super()._send(self._head if self._is_on_device else self._host.nbytes)
        self._flat, self._is_on_device = flat, True

    def _build(self, values, restores):
        if self._is_complete:
            raise CaptureError("the captured step updates or restores other arrays than the step before it")
        super()._build(values, restores)

    def _send(self, size):
        """Does nothing: an upload in a graph would repeat the values of the capture; :meth:`refresh` uploads."""
