"""Exponential moving averages of many arrays; on a device by two launches a step."""

import functools
import operator

import numpy as np
from chainer import backend

from mixprec.backends import launcher_of
from mixprec.backends.memory import flat, in_order_of
from mixprec.backends.transfers import on_host, to_host
from mixprec.optimizer.batch.saved_arrays import source_of, table_of

_PART = np.dtype([("value", np.uint64), ("average", np.uint64), ("elements", np.int64)])  # as in kernels/average.cu
_ELEMENTS = 4096  # per block


class MovingAverage:
    """Averages of float32 arrays over the steps, in float32: ``average += (1 - d) * (value - average)``.

    ``d = min(decay, (1 + n) / (10 + n))`` after n steps, so that the first values, which are far off, are soon
    forgotten (TensorFlow's ``ExponentialMovingAverage`` with ``num_updates``). An average begins with the value that
    the array has when it is first followed. Results are bit for bit the same on NumPy and on a device.

    A difference below ``2^-24 / (1 - d)`` of the average is lost in rounding: 6e-4 of it with a decay of 0.9999.

    Args:
        decay: above 0 and below 1.

    Attributes:
        averages: array for each followed array, by name; each has the order of axes in memory of its array.
    """

    def __init__(self, decay):
        self._decay = float(decay)
        self._arrays = {}
        self._steps = np.zeros((), np.int64)
        self._move = None  # function that updates the averages, made by the first update for these arrays
        self.averages = {}

    @property
    def steps(self):
        """Number of steps that were not skipped; read from the device if it is there."""
        return int(to_host(self._steps))

    def follow(self, arrays):
        """Sets the arrays to average from now on.

        Args:
            arrays: dict of arrays by name, on one device. Averages with known names continue.
        """
        if len(arrays) == len(self._arrays) and all(map(operator.is_, arrays.values(), self._arrays.values())):
            return
        before, self.averages = self.averages, {}
        for name, array in arrays.items():
            self.averages[name] = in_order_of(array, array)
            if name in before and before[name].shape == array.shape:
                _assign(self.averages[name], before[name])
        self._arrays = dict(arrays)
        self._move = None

    def restart(self):
        """Restarts from the current values of the arrays."""
        self.load(self._arrays, 0)

    def load(self, values, steps):
        """Continues from given averages and a number of steps.

        Args:
            values: dict of arrays by name, on any device.
            steps: integer.
        """
        for name, average in self.averages.items():
            _assign(average, values[name])
        self._steps, self._move = np.array(steps, np.int64), None

    def update(self, skipped):
        """Updates the averages.

        Args:
            skipped: whether the step was skipped: a boolean array of shape () where the arrays are, or on the host. It
                is not read from a device.
        """
        if (on_host(skipped) and skipped) or not self.averages:
            return
        if self._move is None:
            launcher = launcher_of(next(iter(self._arrays.values())))
            pairs = list(zip(self._arrays.values(), self.averages.values(), strict=True))
            self._move = functools.partial(_on_host, pairs) if launcher is None else _OnDevice(pairs, launcher)
        self._steps = self._move(self._decay, self._steps, skipped)


def _on_host(pairs, decay, steps, skipped):
    del skipped  # always false here
    weight = np.float32(1 - min(decay, (1 + int(steps)) / (10 + int(steps))))
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is reported elsewhere
        for value, average in pairs:
            difference = value - average
            difference *= weight
            average += difference
    return np.array(steps + 1, np.int64)


class _OnDevice:
    def __init__(self, pairs, launcher):
        self._launcher = launcher
        self._kernels = launcher.compile(source_of("average.cu", launcher.threads), ("weigh", "average"))
        self._weight = launcher.full((), 0, "float32")
        parts = []
        for value, average in pairs:
            size, addresses = value.size, [launcher.address(flat(array)) for array in (value, average)]
            for start in range(0, size, _ELEMENTS):
                parts.append((*(address + 4 * start for address in addresses), min(_ELEMENTS, size - start)))
        self._blocks = len(parts)
        self._table = table_of(np.array(parts, _PART), launcher)

    def __call__(self, decay, steps, skipped):
        launcher, address = self._launcher, self._launcher.address
        if on_host(steps):
            steps = launcher.full((), int(steps), "int64")
        flag = 0 if on_host(skipped) else address(skipped)
        launcher.launch(self._kernels["weigh"], 1, [flag, address(steps), address(self._weight), decay])
        if self._blocks:
            launcher.launch(self._kernels["average"], self._blocks, [address(self._table), address(self._weight)])
        return steps


def _assign(target, source):
    """Copies an array into one that may be on another device."""
    target[...] = backend.get_device_from_array(target).send(source)
