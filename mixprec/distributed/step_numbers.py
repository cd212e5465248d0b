"""Numbers about gradients that ranks add up at the end of a step, and whether all have added up gradients in one order.

:class:`~mixprec.distributed.exchange.GradientExchange` has a :class:`StepNumbers`.
"""

import zlib

import numpy as np

from mixprec.backends.capture_error import CaptureError
from mixprec.distributed.same_models import check_order, fingerprint


class StepNumbers:
    """Sums of numbers, of the step under way and of the one before."""

    def __init__(self):
        self._last = None  # numbers, sums of gradients that were asked for, sums of the numbers

    def start(self, transport, numbers):
        """Starts to add up numbers over ranks.

        Args:
            transport: :class:`~mixprec.distributed.transport.Transport`.
            numbers: float64 array.

        Returns:
            Callable without arguments that waits for the sums, and returns them. It raises a ``RuntimeError`` on all
            ranks if they have asked for sums in other orders.
        """
        own, places = numbers.copy(), transport.places()
        last = transport.start(numbers)
        of_order = fingerprint(zlib.crc32(repr(places).encode()))
        orders = of_order.copy()
        work = transport.start(orders) if transport.shares_order else None

        def joined():
            last.join()
            if work is not None:
                work.join()
                if (orders != transport.size * of_order).any():
                    check_order(transport.gather(places))
            self._last = own, places, numbers.copy()
            return numbers

        return joined

    def repeated(self, transport, numbers):
        """Returns the sums of the step before for a step that is captured, in which nothing can be asked.

        Args:
            transport, numbers: as for :meth:`start`.

        Raises:
            CaptureError: the numbers are others, or sums of gradients were asked for in another order.
        """
        own, places, sums = self._last
        if transport.places() != places or not np.array_equal(numbers, own, equal_nan=True):
            raise CaptureError("a captured step has other gradients, or sums over processes, than the step before")
        return sums.copy()
