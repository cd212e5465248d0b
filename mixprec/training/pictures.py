"""Decides when pictures of a run are drawn, for :mod:`.plots` and :mod:`.gradient_histogram`."""

import time

_SHARE = 0.05  # largest fraction of the time


class Pictures:
    """Draws at once if drawing has taken at most 5 % of the time since the last picture, otherwise later.

    Drawing may take as long as an epoch of a small data set. A trainer calls :meth:`finish` at its end, so that the
    last call is always drawn.

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
        """Draws a delayed picture."""
        if self._waiting is None:
            return
        write, self._waiting = self._waiting, None
        begin = time.monotonic()
        write()
        end = time.monotonic()
        self._next = end + (end - begin) / _SHARE
