"""When pictures of a run are drawn: :mod:`.plots` and :mod:`.gradient_histogram` ask."""

import time

_SHARE = 0.05  # of the time, at most


class Pictures:
    """Draws at once if the last drawing took at most 5 % of the time since then, and later otherwise.

    An epoch of a small data set takes as long as its pictures do. A trainer calls :meth:`finish` at its end, so that
    the last pictures are always those of the last call.

    Example::

        pictures = Pictures()
        pictures.draw(lambda: figure.savefig("loss.png"))
        pictures.finish()
    """

    def __init__(self):
        self._waiting, self._next = None, -float("inf")

    def draw(self, write):
        """Calls ``write()`` now, or in :meth:`finish` if no other call comes before."""
        self._waiting = write
        if time.monotonic() >= self._next:
            self.finish()

    def finish(self):
        """Draws what waits."""
        if self._waiting is None:
            return
        write, self._waiting = self._waiting, None
        begin = time.monotonic()
        write()
        end = time.monotonic()
        self._next = end + (end - begin) / _SHARE
