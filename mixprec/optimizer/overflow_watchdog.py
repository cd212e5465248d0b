"""Stops training that has diverged; :class:`~mixprec.MixedPrecisionOptimizer` asks when patience may be over."""

import math

from mixprec.backends.transfers import to_host_async
from mixprec.optimizer import diagnosis
from mixprec.precision.loss_scale import LossScaleExhausted

_LATER = 8  # steps after which a fetched number has arrived, unless the host is further ahead of the device


class OverflowWatchdog:
    """Stops training that has diverged. The host looks when patience may have run out: rarely, and never late.

    Args:
        scaler: the loss scale, which counts overflows in a row; with ``patience=None`` it is never looked at.
        rank: rank of this process among several. All look in the same step, or an error would leave others waiting.

    Attributes:
        steps: number of steps for which patience cannot run out. Each step takes one, and calls :meth:`check` when none
            is left.
    """

    def __init__(self, scaler, rank=None):
        self._scaler, self._rank = scaler, rank
        self.steps = math.inf if scaler.patience is None else scaler.patience
        self._fetched = None

    def look_next_time(self):
        """Must be called when the counter of the loss scale was loaded."""
        self.steps = math.inf if self._scaler.patience is None else 1
        self._fetched = None

    def check(self, masters, statistics, lossfun, arguments, *, wait=True):
        """Checks whether patience has run out.

        Args:
            masters, statistics, lossfun: as for :func:`mixprec.optimizer.diagnosis.describe`.
            arguments: function that returns the arguments of the loss function, ``(args, kwds)``; only called before an
                error.
            wait: whether to wait for the device when patience may have run out. Otherwise the counter is fetched, and
                read when it has arrived; with several ranks ``_LATER`` steps later.

        Raises:
            LossScaleExhausted: the last ``patience`` steps all overflowed.
        """
        if wait:
            in_row = self._scaler.overflows_in_row
        else:
            if self._fetched is None:
                self._fetched = to_host_async(self._scaler.arrays[-1])
            if self.steps > -_LATER if self._rank is not None else not self._fetched.done:
                return
            in_row = int(self._fetched.value)
        # A value below 0 counts the steps since the counter was fetched.
        self.steps, self._fetched = max(self._scaler.patience - in_row + self.steps, 1), None
        if in_row >= self._scaler.patience:
            where = diagnosis.describe(masters, statistics, lossfun, *arguments(), self._rank)
            scale = "" if self._scaler.description is None else f"{self._scaler.description}; "
            raise LossScaleExhausted(f"{in_row} steps in a row overflowed, as many as patience allows; {scale}{where}")
