"""The time that this process spends on measuring engines, and its limit, ``search_seconds`` of the settings."""

import contextlib
import logging
import threading
import time

from mixprec.base.announcements import announce

_log = logging.getLogger("mixprec")


class SearchTime:
    """The time spent on all devices and by all threads, and the number of operations left unmeasured for lack of it.

    Attributes:
        spent: seconds; nested measurements count once.
        measured: number of operations of cuDNN that were measured.
        unmeasured: number of operations that were not.
    """

    def __init__(self):
        self.spent, self.measured, self.unmeasured = 0.0, 0, 0
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    def is_left(self, limit):
        """Whether measuring is allowed; running measurements are finished.

        Args:
            limit: seconds, or ``None`` for no limit.
        """
        return limit is None or self.spent < limit

    @contextlib.contextmanager
    def spending(self, operations=0):
        """Counts the time inside the block, and the number of operations that are measured there."""
        is_outermost = not getattr(self._of_thread, "is_inside", False)
        self._of_thread.is_inside = True
        start = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.measured += operations
                if is_outermost:
                    self._of_thread.is_inside = False
                    self.spent += time.monotonic() - start

    def skip(self, operation, limit):
        """Notes that an operation is not measured; the first time, an announcement says so."""
        with self._lock:
            self.unmeasured += 1
            count = self.unmeasured
        if count == 1:
            text = "cudnn.search_seconds: %g s are used up after %d operations; others are chosen as with heuristic"
            announce(text, limit, self.measured)
        _log.info("%s is not measured, as %d in all so far", operation, count)


SEARCH_TIME = SearchTime()
