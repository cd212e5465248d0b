"""Schedules and predictions, against numbers that were computed by hand.

The round: three functions go forward in 1 s each, and backward in 2 s each; events 2 and 3 use 5 bytes more.
Event 4 begins after 5 s, event 5 after 7, and the round takes 9. A has 10 bytes, B 4, C 6.
"""

import dataclasses

import numpy as np
import pytest

from mixprec.activation_memory.recording import Buffer, Bus, Event, Recomputation, Recording
from mixprec.activation_memory.timetable import SWAP, Forecast, schedule

EVENTS = tuple(
    Event(name, is_forward, seconds, others)
    for name, is_forward, seconds, others in [
        *(("f", True, 1.0, 0), ("g", True, 1.0, 0), ("h", True, 1.0, 5), ("h", False, 2.0, 5), ("g", False, 2.0, 0)),
        ("f", False, 2.0, 0),
    ]
)
A = Buffer(10, "f", 0, 1, (5,))
B = Buffer(4, "g", 1, 2, (4,), Recomputation(0.5, (0,)))
C = Buffer(6, "h", 2, 2, (3,))
ROUND = Recording(EVENTS, (A, B, C))


def of(found):
    return found.seconds, found.stalled, found.peak, found.release[0], found.back[0]


def test_all_is_kept():
    found = schedule(["keep"] * 3, ROUND, None, Bus(1, 1))
    assert (found.seconds, found.stalled, found.recomputed, found.bytes_out) == (9.0, 0.0, 0.0, 0)
    assert found.peak == 10 + 4 + 6 + 5
    assert found.release == found.back == (None, None, None)
    assert schedule(["keep"] * 3, ROUND, 25, Bus(1, 1)) == found
    assert schedule(["keep"] * 3, ROUND, 24, Bus(1, 1)) is None


SWAPPED = [
    # The copy out takes 1 s, from 1 s on; there is memory for A again at event 4, and the copy back is done at 6.
    (Bus(10, 10), 20, (9.0, 0.0, 20, 2, 4)),
    # Copied back from 5 s to 9; event 5 would begin at 7.
    (Bus(10, 2.5), 20, (11.0, 2.0, 20, 2, 4)),
    # Copied out from 1 s to 5; event 2 would begin at 2, and needs the memory.
    (Bus(2.5, 10), 20, (12.0, 3.0, 20, 2, 4)),
    (Bus(2.5, 2.5), 20, (14.0, 5.0, 20, 2, 4)),
    # Out until 5.5; back from 8.5 to 13 instead of 10.5.
    (Bus(2.5, 2.5, 0.5), 20, (15.0, 6.0, 20, 2, 4)),
    # With memory for all there is no need to wait: it is given back when event 4 begins.
    (Bus(2.5, 10), 25, (9.0, 0.0, 25, 4, 4)),
    # Back at once.
    (Bus(10, 10), None, (9.0, 0.0, 25, 2, 2)),
]


@pytest.mark.parametrize(("bus", "budget", "expected"), SWAPPED)
def test_one_is_swapped(bus, budget, expected):
    found = schedule(["swap", "keep", "keep"], ROUND, budget, bus)
    assert of(found) == pytest.approx(expected)
    assert found.bytes_out == 10


def test_one_is_computed_again():
    found = schedule(["keep", "recompute", "keep"], ROUND, 25, Bus(1, 1))
    assert (found.seconds, found.stalled, found.recomputed, found.bytes_out) == (9.5, 0.0, 0.5, 0)
    assert (found.release, found.back) == ((None, 3, None), (None, None, None))
    assert found.peak == 25  # in event 2: B is still held


def test_sources_are_needed_by_what_is_computed_from_them():
    """A is needed at event 4, where B is computed again: 10 + 4 + 6 bytes; while it is copied, event 3 has 5 more."""
    found = schedule(["swap", "recompute", "keep"], ROUND, 21, Bus(10, 10))
    assert of(found) == (9.5, 0.0, 21, 2, 3)
    assert of(schedule(["swap", "recompute", "keep"], ROUND, 20, Bus(10, 10))) == (10.5, 1.0, 20, 2, 4)
    assert schedule(["swap", "recompute", "keep"], ROUND, 19, Bus(10, 10)) is None
    # Copied back from 3 s to 7, while event 4 would begin at 5.
    assert of(schedule(["swap", "recompute", "keep"], ROUND, 21, Bus(10, 2.5))) == (11.5, 2.0, 21, 2, 3)


def test_what_is_computed_again_is_no_source():
    again = dataclasses.replace(A, recomputation=Recomputation(1.0, ()))
    recording = Recording(EVENTS, (again, B, C))
    assert schedule(["recompute", "recompute", "keep"], recording, None, Bus(1, 1)) is None
    assert schedule(["recompute", "keep", "keep"], recording, None, Bus(1, 1)).seconds == 10.0


def test_copies_queue_up():
    """Two buffers of one function leave in their order, and come back in the order in which they are needed."""
    buffers = (Buffer(10, "f", 0, 0, (5,)), Buffer(20, "f", 0, 0, (4,)))
    found = schedule(["swap", "swap"], Recording(EVENTS, buffers), 30, Bus(10, 10))
    # Out until 2 s and 4 s: before the events 2 and 4. Event 4 begins at 5, and waits for its copy until 7.
    assert found.release == (2, 4)
    assert found.back == (4, 4)
    assert (found.seconds, found.stalled) == (11.0, 2.0)


@pytest.mark.parametrize(("spare", "release", "seconds"), [(0.0, 4, 9.0), (-1.0, 2, 12.0), (0.5, 5, 10.0)])
def test_memory_is_given_back_earlier_or_later(spare, release, seconds):
    """The copy is done 4 s after A was made; event 5 begins 2 s after that, and then waits for the copy back."""
    found = Forecast(ROUND, None, Bus(2.5, 10)).schedule(np.array([SWAP, 0, 0]), spare)
    assert (found.release[0], found.seconds) == (release, seconds)


def test_nothing_is_retained():
    assert schedule([], Recording(EVENTS, ()), None, Bus(1, 1)).peak == 5
    assert schedule([], Recording((), ()), 0, Bus(1, 1)).seconds == 0.0
