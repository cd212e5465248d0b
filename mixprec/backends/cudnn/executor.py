"""Execution of built engines on a device's current stream.

A :class:`~mixprec.backends.cudnn.plans.Plan` runs through it in each step, and the search while it measures engines.
"""

import threading

from mixprec.backends.cudnn.handles import Handles
from mixprec.backends.cudnn.workspace import Workspaces


class Executor:
    """Runs cuDNN on the current stream of a device, independent of the current device.

    Args:
        frontend: the module of cuDNN's frontend.
        device: :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`.

    Attributes:
        device: the device.
        handles: :class:`~mixprec.backends.cudnn.handles.Handles`.
    """

    def __init__(self, frontend, device):
        self.device = device
        self.handles = Handles(frontend, device)
        self._workspaces = Workspaces(device)
        # Kernels of two plans must not alternate on a stream, as they share a workspace; and the frontend does not
        # promise that two threads may use a graph at once.
        self._lock = threading.Lock()

    def run(self, graph, index, addresses, *, size=0, workspace=None):
        """Runs an engine.

        Args:
            graph: a graph of the frontend.
            index: number of a built engine in the graph.
            addresses: dict of ints by uid.
            size: bytes of the shared workspace.
            workspace: address of the caller's own workspace, instead of the shared one.
        """
        with self._lock, self.device.current():
            stream = self.device.stream()
            if workspace is None:
                workspace = self._workspaces.address(stream, size)
            # Not execute(): in frontend 1.28 it describes every tensor anew first, 15 microseconds instead of 5.
            graph.execute_plan_at_index(addresses, workspace, index, self.handles.on(stream))
