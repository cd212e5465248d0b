"""Which of several ways to compute the same is the fastest, by measurement on the device."""

import logging
import statistics

_ROUNDS = 5
_log = logging.getLogger("mixprec")


def fastest(device, candidates):
    """Times candidates and returns the fastest.

    Each is called once to warm up; one that raises an exception then is out. The others are called in turns, so that a
    clock that changes meanwhile favours none of them, and the median of their times counts. Of equally fast ones the
    first wins.

    Args:
        device: :class:`~mixprec.backends.cudnn.device.CupyDevice`.
        candidates: pairs of name and callable, which does its work on the current stream, the same each time.

    Returns:
        ``(name, milliseconds)``

    Raises:
        Exception: that of the first candidate, if all of them have failed.
    """
    working, failures = [], []
    for name, function in candidates:
        try:
            function()
        except Exception as error:  # whatever it is: another one may work
            _log.info("%s is out, it failed when it was measured: %s", name, error)
            failures.append(error)
        else:
            working.append((name, function))
    if not working:
        raise failures[0]
    rounds = [device.times([function for _, function in working]) for _ in range(_ROUNDS)]
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    best = min(range(len(working)), key=medians.__getitem__)
    return working[best][0], medians[best]
