"""Sums numbers about gradients at the end of a step, and checks that all ranks have summed in the same order.

:class:`~mixprec.distributed.exchange.GradientExchange` has a :class:`StepNumbers`.
"""

import zlib

import numpy as np

from mixprec.backends.capture_error import CaptureError
from mixprec.distributed.same_models import check_order, fingerprint


class StepNumbers:
    """Sums of numbers over ranks, for the current and for the previous step."""

    def __init__(self):
        self._last = None  # numbers, log of gradient sums, sums of the numbers

    def start(self, transport, numbers):
        """Starts to sum numbers over ranks.

        Args:
            transport: :class:`~mixprec.distributed.transport.Transport`.
            numbers: float64 array.

        Returns:
            Function without arguments that waits for the sums and returns them. It raises ``RuntimeError`` on all ranks
            if they have summed gradients in different orders.
        """
        own, log = numbers.copy(), transport.take_log()
        last = transport.start(numbers)
        of_order = fingerprint(zlib.crc32(repr(log).encode()))
        orders = of_order.copy()
        work = transport.start(orders) if transport.shares_order else None

        def joined():
            last.join()
            if work is not None:
                work.join()
                if (orders != transport.size * of_order).any():
                    check_order(transport.gather(log))
            self._last = own, log, numbers.copy()
            return numbers

        return joined

    def repeated(self, transport, numbers):
        """Returns the sums of the previous step for a step that is captured, in which the host cannot communicate.

        Args:
            transport, numbers: as for :meth:`start`.

        Raises:
            CaptureError: the numbers, or the order of gradient sums, differ from the previous step.
        """
        own, log, sums = self._last
        if transport.take_log() != log or not np.array_equal(numbers, own, equal_nan=True):
            raise CaptureError("a captured step has other gradients, or sums over processes, than the step before it")
        return sums.copy()
