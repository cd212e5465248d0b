"""Weight gradients on a side stream, beside the rest of the backward pass, which does not need them.

The two streams meet three times. The side stream waits until its inputs are ready. The main stream waits for the side
stream when that one is too far behind, and at the end of the backward pass. Until the main stream has waited, the
inputs of the side stream are held: they were allocated for the main stream, whose next work would otherwise reuse their
memory. What the side stream allocates belongs to it, and its next work waits for all earlier work of the main stream.
"""

import collections
import contextlib
import threading

from mixprec.base.scoped import scoped

# How many gradients the side stream may be behind. Their inputs are held meanwhile, two arrays of activations each.
AHEAD = 4


class _Now(threading.local):
    """State of this thread, read before the functions below are called: most passes have no side stream.

    Attributes:
        side: :class:`SideStream`, or ``None`` for no side stream.
        allowed: set of ``(function node, index of an input)`` whose gradients may be computed on the side stream;
            ``None`` outside a pass, or without a side stream.
    """

    side = None
    allowed = None


now = _Now()


class SideStream:
    """Runs work on the second of two streams.

    Args:
        streams: streams of a device, an object with

            - ``second()``: context manager in which the side stream is the current one;
            - ``fork()``: makes the side stream wait for all work that the main stream has been given;
            - ``mark()``: returns an event at the end of all work that the side stream has been given; each of the last
              ``AHEAD`` events stays valid;
            - ``wait(event)``: makes the main stream wait for the event.
    """

    def __init__(self, streams):
        self._streams = streams
        self._under_way = collections.deque()  # (event, what is read until then)

    def run(self, function, held):
        """Returns the result of a function; it is valid only after :meth:`join`.

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
        """Makes later work of the main stream wait for everything that was run here."""
        while self._under_way:
            self._wait()

    def last(self):
        """Returns the event after all work that the main stream has not waited for, or ``None``."""
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
    return None if now.side is None else now.side.last()


def using(side):
    """Inside the block, backward passes of this thread compute weight gradients on a side stream.

    Args:
        side: :class:`SideStream` of the device, whose main stream is the current one; ``None`` for no side stream.
    """
    return scoped(now, side=side)


@contextlib.contextmanager
def backward_pass(allowed):
    """Surrounds a backward pass if ``now.side`` is set; at the end of the block all gradients are ready.

    A pass within a pass, as in ``F.forget``, computes nothing on the side stream: the outer pass may read its gradients
    at once, and adds to the gradients that it leaves in parameters.

    Args:
        allowed: callable that returns a set of pairs, a function node and the index of one of its inputs: no other
            function adds to the gradient of that input, and the pass does not read it.
    """
    side, outer = now.side, now.allowed
    side.join()
    now.allowed = allowed() if outer is None else frozenset()
    try:
        yield
        side.join()
    except BaseException:
        side.forget()
        raise
    finally:
        now.allowed = outer and frozenset(filter(_has_no_gradient, outer))


def _has_no_gradient(use):
    function, index = use
    return getattr(function.inputs[index].get_variable_or_none(), "grad", None) is None


def run(node, index, function, held):
    """Returns the result of a function, the gradient of an input: on the side stream if ``now.allowed`` has it.

    Args:
        node: function node.
        index: index of the input.
        function: callable without arguments.
        held: arrays that it reads.
    """
    return now.side.run(function, held) if (node, index) in now.allowed else function()
