"""Finds the fastest of several functions that compute the same, by measurement on the device."""

import logging
import statistics

from mixprec.backends.cudnn.errors import BrokenDevice, lacks_memory, one_line

_ROUNDS = 2, 3, 10  # turns: of all, of those that are not far slower, of those between which it is close
_SLOW, _CLOSE = 1.5, 1.05  # times the fastest
_log = logging.getLogger("mixprec")


class Failures:
    """What has failed when it was measured, without the exceptions: their frames hold the arrays that were worked on.

    Args:
        what: was measured, for messages.

    Attributes:
        reasons: dict from names to the first lines of what the exceptions say, in the order in which they came.
        lacking: set of the names of what failed for want of memory, and may work the next time.
    """

    def __init__(self, what):
        self._what, self.reasons, self.lacking = what, {}, set()

    def add(self, name, error):
        """Notes an exception, and warns of it."""
        self.reasons[name] = one_line(error)
        if lacks_memory(error):
            self.lacking.add(name)
        _log.warning("%s: %s is out, it failed when it was measured: %s", self._what, name, self.reasons[name])


def fastest(device, candidates, failed, check=None):
    """Times candidates and returns the fastest.

    Each is called once to warm up, to its end; one that raises an exception then is out. The others are called in
    turns, so that a clock that changes meanwhile favours none of them, and the median of their times counts. After two
    turns those are out that took 1.5 times the fastest one's time in both; after three more, those that are within 5 %
    of the fastest get ten more. Of equally fast ones the first wins.

    Args:
        device: :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`.
        candidates: pairs of name and callable, which does its work on the current stream, the same each time.
        failed: called with the name and the exception of one that has failed, as :meth:`Failures.add`.
        check: given a list of such pairs that work, returns those that are to be timed, one at least; may be ``None``.

    Returns:
        ``(name, milliseconds, milliseconds of the first that works)``

    Raises:
        BrokenDevice: one of them has left the device in a state in which nothing works.
        Exception: that of the first candidate, if all of them have failed.
    """
    device.synchronize()  # what has failed before is not the fault of a candidate
    failures = []

    def caught(name, error):
        failures.append(error)
        failed(name, error)

    working = [(name, function) for name, function in candidates if attempt(device, name, function, caught)]
    try:
        if not working:
            raise failures[0]
    finally:
        failures.clear()  # errors hold frames, these the arrays that were worked on, and callers' frames the errors
    if check is not None:
        working = check(working)
    times = [[] for _ in working]
    left = range(len(working))

    def take_turns(rounds):
        for _ in range(rounds):
            for index, milliseconds in zip(left, device.times([working[index][1] for index in left]), strict=True):
                times[index].append(milliseconds)

    def near(measure, factor):
        limit = factor * min(measure(times[index]) for index in left)
        return [index for index in left if measure(times[index]) <= limit]

    take_turns(_ROUNDS[0])
    left = near(min, _SLOW)
    take_turns(_ROUNDS[1])
    left = near(statistics.median, _CLOSE)
    if len(left) > 1:
        take_turns(_ROUNDS[2])
    medians = list(map(statistics.median, times))
    best = min(left, key=medians.__getitem__)
    return working[best][0], medians[best], medians[0]


def attempt(device, name, function, failed):
    """Calls a function, waits for the device, and returns whether that went well.

    Args:
        device: :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`.
        name: of the function.
        function: callable that does its work on the current stream.
        failed: called with the name and the exception if it did not.

    Raises:
        BrokenDevice: the device does not work any more.
    """
    try:
        function()
        device.synchronize()
    except BrokenDevice:
        raise
    except Exception as error:  # whatever it is: another one may work
        failed(name, error)
        try:
            # An error of a kernel stays: an illegal address, say, is the answer to every call from then on.
            device.synchronize()
        except Exception:
            raise BrokenDevice(
                f"{name} has broken the device while it was measured, no call of CUDA works any more: "
                f"{one_line(error)}; it will not be tried again: start the program anew"
            ) from error
        return False
    return True
