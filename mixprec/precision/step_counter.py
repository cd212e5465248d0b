"""The counter of skipped steps of a :class:`~mixprec.MixedPrecisionOptimizer`."""

from typing import ClassVar

from mixprec.backends.transfers import to_host
from mixprec.precision.step_state import StepState


class StepCounter(StepState):
    """Counts skipped steps on the device of the gradients, so that counting needs no reads."""

    state: ClassVar[dict[str, str]] = {"skipped": "int64", "last_step_skipped": "bool"}
    rules = ("skipped = skipped + overflow", "last_step_skipped = overflow")

    @property
    def skipped(self):
        """Number of steps skipped so far; read from the device if it is there."""
        return int(to_host(self._state["skipped"]))

    @property
    def last_skipped(self):
        """Whether the last step was skipped; read from the device if it is there."""
        return bool(to_host(self._state["last_step_skipped"]))


def skip_flag(optimizer):
    """Returns whether the last step of a :class:`~mixprec.MixedPrecisionOptimizer` was skipped, without a read.

    Returns:
        A boolean array of shape () where the step was computed. On a device the next step may write into it.
    """
    return optimizer._counter.arrays[1]
