"""How many steps were skipped, and whether the last one was, counted where the gradients are."""

import warnings

import numpy as np
from chainer import Deserializer, backend, get_array_types

from mixprec.backends.transfers import stored, to_host


class StepCounter:
    """Counts skipped steps where the gradients are, so that nothing is read from a device to count."""

    def __init__(self):
        self._skipped = np.array(0, np.int64)
        self._last_skipped = np.array(False)

    @property
    def skipped(self):
        """Number of steps skipped so far; read from the device if it is there."""
        return int(to_host(self._skipped))

    @property
    def last_skipped(self):
        """Whether the last step was skipped; read from the device if it is there."""
        return bool(to_host(self._last_skipped))

    def advance(self, skipped):
        """Counts a step.

        Args:
            skipped: a bool, or a boolean array of shape () on any device, which is not read.
        """
        is_array = isinstance(skipped, get_array_types())
        if not is_array and type(self._skipped) is np.ndarray:
            self._last_skipped = np.array(bool(skipped))
            if skipped:
                self._skipped = np.array(self._skipped + 1, np.int64)
            return
        if not is_array:
            skipped = backend.get_array_module(self._skipped).asarray(skipped)
        self._last_skipped = skipped
        self._skipped = backend.get_device_from_array(skipped).send(self._skipped) + skipped

    def held_by(self, hold):
        """Hands the counters to the batched update on a device, which counts in place.

        Args:
            hold: puts an array of shape () where it is needed.

        Returns:
            The number of skipped steps (int64), and whether the last one was (bool), arrays of shape ().
        """
        self._skipped, self._last_skipped = map(hold, self.arrays)
        return self.arrays

    @property
    def arrays(self):
        """The number of skipped steps, and whether the last one was."""
        return self._skipped, self._last_skipped

    def serialize(self, serializer):
        """Saves or loads the count and the last outcome; ``t`` has been settled before."""
        skipped = int(stored(serializer, "skipped", self._skipped))
        last_skipped = bool(stored(serializer, "last_step_skipped", self._last_skipped))
        if isinstance(serializer, Deserializer):  # what is saved stays where it is: a graph may hold it
            self._skipped, self._last_skipped = np.array(skipped, np.int64), np.array(last_skipped)


def skip_flag(optimizer):
    """Returns whether the last step of a :class:`~mixprec.MixedPrecisionOptimizer` was skipped, without a read.

    Returns:
        A boolean array of shape () where the step was computed. On a device the next step may write into it.
    """
    return optimizer._counter.arrays[1]


def serialize_counters(serializer, counter, scaler):
    """Saves or loads the counter of steps and the loss scale. Without them in a file both begin afresh, with a warning.

    Args:
        serializer: of Chainer's.
        counter: :class:`StepCounter`.
        scaler: the loss scale.

    Returns:
        The counter that counts from now on.
    """
    try:
        counter.serialize(serializer)
        scaler.serialize(serializer["loss_scale"])
    except (KeyError, ValueError):  # what Chainer's npz and HDF5 serializers raise for a name they do not find
        scaler.reset()
        warnings.warn(
            f"the snapshot has no loss scale: it starts afresh at {scaler.value:g}, and skipped at 0", stacklevel=3
        )
        return StepCounter()
    return counter
