"""Steps of Chainer, plain or with mixprec, on NumPy and on CuPy."""

import numpy as np

from benchmarks.bars.timed_step import Step, memory_of_process
from benchmarks.device_memory import peak_of
from mixprec.graph_capture.cuda_graphs import graphs_of

_FIRST = 3  # the first two calls of a converted model are looked at, and the first one makes the optimizer's state
_AGAIN = 2  # steps until CuPy's pool has all that the next ones need
_GRAPH = 20  # more than it takes to make a graph


def step_of(device, run, captured=None, forget=lambda: None):
    """Returns the :class:`~benchmarks.bars.timed_step.Step` that is right for a device.

    Args:
        device: Chainer's device.
        run: callable without arguments that runs a training step.
        captured: what :func:`mixprec.capture` has returned, if ``run`` calls it.
        forget: drops what would be held until the next step.
    """
    return _OnCpu(run, forget) if device.xp is np else _OnGpu(device, run, captured, forget)


class _OnCpu(Step):
    def __init__(self, run, forget):
        self._run, self._forget, self._is_warm = run, forget, False

    def __call__(self):
        self._run()

    def warm_up(self):
        """Runs steps the first time only: nothing is given back in between."""
        for _ in range(0 if self._is_warm else _FIRST):
            self()
        self._is_warm = True

    def release(self):
        self._forget()

    def peak(self):
        return memory_of_process()


class _OnGpu(Step):
    def __init__(self, device, run, captured, forget):
        self._device, self._run, self._captured, self._forget = device, run, captured, forget
        self._graphs = graphs_of(device.xp.empty(0, np.float32))
        self._peak = peak_of(device.xp.cuda.MemoryHook, self._held)
        self._steps = _FIRST

    def __call__(self):
        self._run()

    def warm_up(self):
        """Runs some steps, and if steps are captured, so many that one is the launch of a graph."""
        with self._peak:  # in timed steps it would take time
            self._warm_up()

    def _warm_up(self):
        for _ in range(self._steps):
            self()
        self._steps = _AGAIN
        if self._captured is None:
            return
        replays = self._captured.replays
        for _ in range(_GRAPH):
            if self._captured.why_not is not None or self._captured.replays > replays:
                return
            self()
        raise RuntimeError(f"no graph was launched in {_GRAPH} steps: {self._captured.report()}")

    def synchronize(self):
        self._device.xp.cuda.Device().synchronize()

    def why_eager(self):
        """Runs a step to find out."""
        if self._captured is None:
            return ""
        replays = self._captured.replays
        self()
        if self._captured.replays > replays:
            return ""
        return (self._captured.why_not or self._captured.report()).partition("\n")[0]

    def release(self):
        """Drops graphs, too: it takes a few steps to have them again."""
        self._forget()
        if self._captured is not None and self._captured.why_not is None:
            self._captured.reset()
        self.synchronize()
        self._graphs.release()
        self._peak.bytes = 0

    def peak(self):
        return self._peak.bytes

    def _held(self):
        return self._device.xp.get_default_memory_pool().total_bytes() + self._graphs.pool_bytes
