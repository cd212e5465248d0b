"""The search for a first loss scale: if the first step overflows, its backward pass is repeated at a smaller scale.

:class:`~mixprec.MixedPrecisionOptimizer` makes a :class:`ScaleSearch` in each ``update(lossfun)`` until gradients are
finite for the first time, if its :class:`~mixprec.DynamicLossScale` has ``search=True``.
:meth:`ScaledPasses.run <mixprec.precision.scaled_loss.ScaledPasses.run>` calls it.
"""

import contextlib

import numpy as np
from chainer import backend, get_array_types

from mixprec.backends.transfers import to_host
from mixprec.base.announcements import announce
from mixprec.precision.repeated_pass import repeatable, why_not

REPEATS = 8  # each at a quarter of the scale: from 2^16 down to 1
_FINITE, _REPEAT, _HOPELESS = range(3)  # result of a pass; with several ranks the largest is used


def give_up(scaler, reason):
    """Ends a search before gradients were finite, and announces once why; does nothing without a search.

    Args:
        scaler: the loss scale.
        reason: the reason, as text.
    """
    if scaler.is_searching:
        scaler.end_search()
        announce(
            "the first loss scale is not searched (%s): steps are skipped until gradients are finite; a smaller init "
            "of the loss scale avoids that",
            reason,
        )


class ScaleSearch:
    """The search in one step.

    Args:
        scaler: :class:`~mixprec.DynamicLossScale` that is searching.
        ranks: :class:`~mixprec.optimizer.ranks.Ranks`, or ``None``.
        overflows: function that returns whether a gradient of the model is not finite: a bool, or a boolean array of
            shape () that has not been read.
        reason: why a search is impossible, as text, or ``None``.
    """

    def __init__(self, scaler, ranks, overflows, reason):
        self._scaler, self._ranks = scaler, ranks
        self._overflows, self._reason = overflows, reason

    def takes(self, loss, left):
        """Whether :meth:`run` can run the passes of a step; the same on all ranks. If not, the search ends.

        Args:
            loss: the first loss of the step, whose graph is there.
            left: number of further losses, below 0 if unknown.
        """
        reason = self._reason or ("a step has several losses" if left else why_not(loss, alone=self._ranks is None))
        if self._ranks is not None:
            reason = self._ranks.first(reason)
        if reason is not None:
            give_up(self._scaler, reason)
        return reason is None

    def run(self, passes, loss):
        """Runs backward passes of a loss until gradients are finite, and leaves the gradients of the last pass.

        The loss scale is then the scale of the last pass. The host reads one number per pass.

        Args:
            passes: :class:`~mixprec.precision.scaled_loss.ScaledPasses`.
            loss: variable.
        """
        with repeatable() as gradients:
            for left in reversed(range(REPEATS + 1)):
                with contextlib.nullcontext() if self._ranks is None else self._ranks.last_pass(sends=False):
                    scaled = passes.scale(loss)
                    scaled.backward()
                found = self._found(scaled.unscaled)
                if found != _REPEAT or not left:
                    break
                self._scaler.lower()
                passes.factor = None
                gradients.restore()
        if found == _FINITE:
            self._scaler.end_search()

    def _found(self, loss):
        """Returns the result of a pass, with one read from the device."""
        overflow = self._overflows()
        is_array = isinstance(overflow, get_array_types())
        device = backend.get_device_from_array(overflow if is_array else np.asarray(overflow))
        is_finite = device.send(loss.xp.isfinite(loss.array).all())
        can = is_finite & device.send(self._scaler.can_fall)
        number = int(to_host(overflow * (_HOPELESS - can * 1)))
        return number if self._ranks is None else self._ranks.largest(number)
