"""Finds the fastest of several functions that compute the same, by measurement on the device."""

import logging
import statistics

from mixprec.backends.cudnn.errors import BrokenDevice, lacks_memory, one_line

_ROUNDS = 2, 3, 10  # turns: of all candidates, of those not far slower, of close ones
_SLOW, _CLOSE = 1.5, 1.05  # times the fastest
_log = logging.getLogger("mixprec")


class Failures:
    """Failures of measurements, without the exceptions, whose frames would hold the arrays.

    Args:
        what: name of the measured operation, for messages.

    Attributes:
        reasons: dict from names to the first lines of the exceptions, in their order.
        lacking: set of names that failed for lack of memory, and may work the next time.
    """

    def __init__(self, what):
        self._what, self.reasons, self.lacking = what, {}, set()

    def add(self, name, error):
        """Notes an exception, and warns about it."""
        self.reasons[name] = one_line(error)
        if lacks_memory(error):
            self.lacking.add(name)
        _log.warning("%s: %s is excluded, it failed when it was measured: %s", self._what, name, self.reasons[name])


def fastest(device, candidates, failed, check=None):
    """Times candidates and returns the fastest.

    Each is called once to warm up; candidates that raise an exception are excluded. The others are called in turns, so
    that a changing clock favours none of them, and the median of their times counts. After two turns, candidates that
    took 1.5 times the fastest time in both are excluded; after three more, candidates within 5 % of the fastest get ten
    more. Among equally fast ones the first wins.

    Args:
        device: :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`.
        candidates: pairs of name and callable, which does its work on the current stream, the same each time.
        failed: called with the name and the exception of a failed candidate, as :meth:`Failures.add`.
        check: function from the list of working pairs to the pairs to be timed, at least one; may be ``None``.

    Returns:
        ``(name, milliseconds, milliseconds of the first that works)``

    Raises:
        BrokenDevice: a candidate has left the device in an unusable state.
        Exception: the first candidate's exception, if all have failed.
    """
    device.synchronize()  # earlier failures must not count for a candidate
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
        name: name of the function.
        function: callable that does its work on the current stream.
        failed: called with the name and the exception if it failed.

    Raises:
        BrokenDevice: the device does not work any more.
    """
    try:
        function()
        device.synchronize()
    except BrokenDevice:
        raise
    except Exception as error:  # any exception: other candidates may work
        failed(name, error)
        try:
            # An error of a kernel stays: after an illegal address, for example, every later call returns this error.
            device.synchronize()
        except Exception:
            raise BrokenDevice(
                f"{name} has broken the device while it was measured, no call of CUDA works any more: "
                f"{one_line(error)}; it will not be tried again: restart the program"
            ) from error
        return False
    return True
