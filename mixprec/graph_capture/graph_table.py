"""The table of parameters that the kernels in a CUDA graph read."""

from mixprec.backends.capture_error import CaptureError
from mixprec.optimizer.batch.table import Table


class GraphTable(Table):
    """A table that is made before a step is captured, and brought up to date before each launch of the graph.

    All addresses in it are those that the graph was captured with; hyperparameters and ``t`` may change.

    Args:
        table: that of the last step, whose parameters and number of arrays to restore it takes.
    """

    def __init__(self, table):
        super().__init__(table._entries, table._programs, table._launcher)
        self._is_complete = self._is_on_device = False
        self.look()
        self._build(self._values.size, table.restores)
        self._arrays, self._is_complete = self._all, True

    def refresh(self):
        """Uploads what is new: everything before the first launch, hyperparameters that have changed after that.

        The caller has seen that rules get their hyperparameters from where they had them.
        """
        flat = self._values.now()
        if self._is_on_device and flat == self._flat:
            return
        self._values.put(flat, self._host_values)
        super()._send(self._head if self._is_on_device else self._host.nbytes)
        self._flat, self._is_on_device = flat, True

    def _build(self, values, restores):
        if self._is_complete:
            raise CaptureError("the step that is captured updates or restores other arrays than the one before it")
        super()._build(values, restores)

    def _send(self, size):
        """Leaves it to :meth:`refresh`: an upload in a graph would repeat what it was when it was captured."""
