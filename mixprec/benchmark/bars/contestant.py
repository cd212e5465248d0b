"""What runs in the process of a row: a training step, and blocks of it that are timed."""

import dataclasses
import time
from collections.abc import Callable

import chainer
import numpy as np

from mixprec.benchmark import gpu

_WARM_UP = 3  # the first step makes what is made once: kernels, cuDNN's plans, the state of the optimizer
_REFILL = 2  # steps until CuPy's pool has all that the next ones need


@dataclasses.dataclass(frozen=True)
class Bar:
    """A way to train that is to be measured, or why that cannot be done here.

    Attributes:
        name: of the row.
        make: callable ``(network, device, batch, size)``, at the top of a module or a partial of such a one, that
            returns a training step: a callable without arguments, whose data lie on the device. What a step has
            allocated should be free after it, but parameters, gradients and the state of the optimizer: all rows of a
            batch size are alive at the same time.
        reason: one line that says why it cannot be measured here, or ``""``.
    """

    name: str
    make: Callable | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Block:
    """What was measured in a block of steps.

    Attributes:
        seconds: of a step.
        peak: bytes that CuPy's pool has needed, parameters included; ``None`` on a CPU.
    """

    seconds: float
    peak: int | None


class Contestant:
    """A training step that is warm.

    Between blocks CuPy's pool is empty but for what outlives a step, so that the rows take turns in memory, too. What
    it takes to choose engines of cuDNN, before the first block, does not count as needed.

    Args:
        bar: how to make the step.
        network: callable from the number of classes to a Chainer link from images (N, 3, size, size) to logits.
        specifier: of the device.
        batch: images in a batch.
        size: height and width of an image in pixels.
    """

    def __init__(self, bar, network, specifier, batch, size):
        self._device = chainer.get_device(specifier)
        self._device.use()
        self._step = bar.make(network, self._device, batch, size)
        for _ in range(_WARM_UP):
            self._step()
        self._release()

    def block(self, steps):
        """Runs so many steps in a row, after some that fill the pool and are not timed; returns the :class:`Block`."""
        for _ in range(_REFILL):
            self._step()
        if self._on_cpu:
            start = time.perf_counter()
            for _ in range(steps):
                self._step()
            return Block((time.perf_counter() - start) / steps, None)
        seconds = gpu.seconds(self._device, self._step, steps)
        peak = self._pool.total_bytes()
        self._release()
        return Block(seconds, peak)

    def _release(self):
        if not self._on_cpu:
            self._device.xp.cuda.Device().synchronize()
            self._pool.free_all_blocks()

    @property
    def _on_cpu(self):
        return self._device.xp is np

    @property
    def _pool(self):
        return self._device.xp.get_default_memory_pool()


_contestant = []


def attempt(task, *arguments):
    """Runs a task in the process of a row.

    Args:
        task: :func:`prepare` or :func:`block`.
        *arguments: of it.

    Returns:
        ``(result, reason)``: what the task has returned, and ``""``; or ``None``, and in one line why it has failed.
    """
    try:
        return task(*arguments), ""
    except Exception as error:  # the other rows are worth having
        text = str(error).strip().partition("\n")[0]
        return None, f"{type(error).__name__}: {text}" if text else type(error).__name__


def prepare(*arguments):
    """Makes the :class:`Contestant` of this process."""
    _contestant[:] = [Contestant(*arguments)]


def block(steps):
    """Runs a block of it, see :meth:`Contestant.block`."""
    return _contestant[0].block(steps)
