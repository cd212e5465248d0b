"""Gradients of filters on a second stream, beside the rest of the backward pass, which does not need them.

The two streams meet three times: the second one waits until what it reads is there; the first one waits for the second
when that is too far behind, and at the end of the backward pass. Until the first one has waited, what the second one
reads is held: it was allocated for the first stream, whose next work would otherwise get its memory. The
memory that the second one allocates is its own, and its next work waits for all earlier work of the first stream.
"""

import collections
import contextlib
import threading

from mixprec.base.scoped import scoped

# How many gradients the second stream may be behind. Their inputs are held meanwhile, two arrays of activations each.
AHEAD = 4


class _Now(threading.local):
    """Of this thread; looked at before the functions below are called, as most passes have no second stream.

    Attributes:
        aside: :class:`Aside`, or ``None`` for no second stream.
        allowed: set of ``(function node, place among its inputs)`` whose gradients may be computed aside; ``None``
            outside of a pass, or without a second stream.
    """

    aside = None
    allowed = None


now = _Now()


class Aside:
    """Runs work on the second of two streams.

    Args:
        streams: of a device, an object with

            - ``second()``: context manager in which the second stream is the current one;
            - ``fork()``: the second stream comes after all that the first one has been asked;
            - ``mark()``: returns an event, the end of all that the second stream has been asked; one of the last
              ``AHEAD`` stays what it is;
            - ``wait(event)``: the first stream comes after that.
    """

    def __init__(self, streams):
        self._streams = streams
        self._under_way = collections.deque()  # (event, what is read until then)

    def run(self, function, held):
        """Returns the result of a function, which is there after :meth:`join` only.

        Args:
            function: callable without arguments.
            held: arrays that it reads.
        """
        while len(self._under_way) >= AHEAD:
            self._wait()
        self._streams.fork()
        with self._streams.second():
            result = function()
        self._under_way.append((self._streams.mark(), held))
        return result

    def join(self):
        """What the first stream is asked from now on comes after all that was run here."""
        while self._under_way:
            self._wait()

    def last(self):
        """Returns the event after all that was run here and the first stream has not waited for, or ``None``."""
        return self._under_way[-1][0] if self._under_way else None

    def forget(self):
        """Gives up what was run here, after an error: its results are not read."""
        self._under_way.clear()

    def _wait(self):
        event, _ = self._under_way[0]
        self._streams.wait(event)
        self._under_way.popleft()


def last():
    """Returns the event that a third stream has to wait for before it reads gradients, or ``None``."""
    return None if now.aside is None else now.aside.last()


def using(aside):
    """Inside of the block backward passes of this thread compute gradients of filters aside.

    Args:
        aside: :class:`Aside` of the device, whose first stream is the current one; ``None`` for no second stream.
    """
    return scoped(now, aside=aside)


@contextlib.contextmanager
def backward_pass(allowed):
    """To be used around a backward pass if ``now.aside`` is there; behind it all gradients are there.

    A pass within a pass, as ``F.forget`` has one, computes nothing aside: the outer one may read its gradients at once,
    and adds to those that it leaves in parameters.

    Args:
        allowed: callable that returns pairs of a function node and the place of one of its inputs, in a set: no other
            function adds to the gradient of that input, and it is not read in the pass.
    """
    aside, outer = now.aside, now.allowed
    aside.join()
    now.allowed = allowed() if outer is None else frozenset()
    try:
        yield
        aside.join()
    except BaseException:
        aside.forget()
        raise
    finally:
        now.allowed = outer and frozenset(filter(_has_no_gradient, outer))


def _has_no_gradient(use):
    function, place = use
    return getattr(function.inputs[place].get_variable_or_none(), "grad", None) is None


def run(node, place, function, held):
    """Returns the result of a function: the gradient of an input, computed aside if ``now.allowed`` has it.

    Args:
        node: function node.
        place: of the input.
        function: callable without arguments.
        held: arrays that it reads.
    """
    if (node, place) in now.allowed:
        return now.aside.run(function, held)
    return function()
