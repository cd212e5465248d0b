"""benchmarks.bars.row_schedule: the order of the rows, and what a failure leaves."""

import contextlib
import os
import time
import types

import pytest

from benchmarks.bars import row_schedule, row_worker
from benchmarks.bars.row_schedule import Timing, measure
from benchmarks.bars.row_worker import BenchmarkRow, Launches, Task
from benchmarks.bars.timed_step import Step
from mixprec.base import announcements
from tests.stand_ins.stub_worker import StubWorker

pytestmark = pytest.mark.slow

TASK = Task("resnet8", None, "@numpy", 8, 64)
BLOCKS, STEPS = 2, 3
WARM = 2 + 1  # steps before the first block: two to warm up, and one that is timed
BLOCK = 2 + STEPS
ORDINARY = "RuntimeError: no room"


class Runs(Step):
    """Steps that take so many seconds of a clock that stands in a race."""

    def __init__(self, race, name, seconds, fail):
        self.race, self.name, self.seconds, self.fail, self.steps = race, name, seconds, fail, 0

    def __call__(self):
        self.steps += 1
        if self.fail and self.steps == self.fail[0]:
            raise self.fail[1]
        self.race.events.append(self.name)
        self.race.now += self.seconds

    def warm_up(self):
        self()
        self()

    def release(self):
        self.race.events.append(f"{self.name} released")

    def peak(self):
        return 10


class Race:
    """Stands for machine, rows and clock; ``events`` are the names of the rows whose steps have run, and more."""

    def __init__(self):
        self.now, self.events, self.seen = 0.0, [], []

    def bar(self, name, seconds, fail=None, key=None):
        """Returns a bar whose steps take so long; ``fail`` are the number of a step and an exception."""

        def make(task):
            assert task is TASK
            self.events.append(f"make {name}")
            return Runs(self, name, seconds, fail)

        return BenchmarkRow(name, make, key=key)

    def measure(self, *bars, blocks=BLOCKS, steps=STEPS, **plan):
        self.rounds = list(measure(list(bars), TASK, Timing(blocks, steps, 60.0, **plan), progress=self.seen.append))
        return self.rounds[-1]

    @property
    def steps(self):
        """Events without what is given back."""
        return [event for event in self.events if "released" not in event]


@pytest.fixture
def race(monkeypatch):
    race = Race()
    monkeypatch.setattr(row_schedule, "Worker", lambda: StubWorker(row_worker, race.events))
    monkeypatch.setattr(row_worker, "time", types.SimpleNamespace(perf_counter=lambda: race.now))
    monkeypatch.setattr(row_schedule, "time", types.SimpleNamespace(monotonic=lambda: race.now))
    monkeypatch.setattr(row_worker, "_notes", row_worker._Notes())
    return race


def test_all_rows_are_warm_before_blocks_alternate(race):
    results = race.measure(race.bar("a", 0.5), BenchmarkRow("b", reason="needs a GPU"), race.bar("c", 1.0))
    start = [*["start", "make a"], *["a"] * WARM, *["start", "make c"], *["c"] * WARM]
    turn = [*["a"] * BLOCK, *["c"] * BLOCK]
    assert race.steps == [*start, *turn, *turn, "end", "end"]
    assert [[block.seconds for block in result.blocks] for result in results] == [[0.5, 0.5], [], [1.0, 1.0]]
    assert [result.reason for result in results] == ["", "needs a GPU", ""]
    assert race.seen == ["a", "b", "c"] * (1 + BLOCKS)
    given_back = [*["a"] * WARM, "a released", *["a"] * BLOCK, "a released", *["a"] * BLOCK, "a released"]
    assert [event for event in race.events if event.startswith("a")] == given_back


def test_a_row_that_is_alone_gives_nothing_back(race):
    race.measure(race.bar("a", 1.0, key=1), BenchmarkRow("b", reason="needs a GPU"), race.bar("c", 1.0, key=1))
    assert "a released" not in race.events


def test_blocks_of_slow_steps_have_fewer_and_of_quick_ones_more(race):
    """Before a block there are two steps to warm up, and 0.3 s until the device is up to its speed."""
    seconds = {"slow": 2.0, "slower": 7.0, "medium": 0.5, "quick": 1 / 64, "quicker": 2.0**-20}
    race.measure(*(race.bar(name, each) for name, each in seconds.items()), blocks=1, steps=10)
    steps = {name: race.events.count(name) - WARM - 2 - int(0.3 / each) for name, each in seconds.items()}
    assert steps == {"slow": 2, "slower": 1, "medium": 10, "quick": 64, "quicker": 1000}


def test_what_does_the_same_is_measured_once(race):
    a, b, c, d = (race.bar(name, 1.0, key=key) for name, key in zip("abcd", (1, 2, 1, None), strict=True))
    results = race.measure(a, b, c, d)
    assert [event for event in race.events if "make" in event] == ["make a", "make b", "make d"]
    assert (results[2].bar, results[2].blocks) == (c, results[0].blocks)
    assert [result.note for result in results] == ["", "", "the same step as a", ""]


def test_a_failure_while_warming_up_is_a_reason_and_its_process_ends_at_once(race):
    fails = (2, RuntimeError("no room\nfor it"))
    bars = race.bar("a", 1.0, fails, key=1), race.bar("same", 1.0, key=1), race.bar("b", 2.0)
    failed, same, other = race.measure(*bars)
    assert (failed.blocks, failed.launches, failed.reason) == ((), None, ORDINARY)
    assert (same.reason, len(other.blocks), other.reason) == (ORDINARY, BLOCKS, "")
    assert race.events[:5] == ["start", "make a", "a", "end", "start"]  # its memory is free before b is made


def test_a_failure_in_a_later_block_is_a_reason_and_the_others_go_on(race):
    fails = (WARM + BLOCK + 1, RuntimeError("no room"))
    results = race.measure(race.bar("a", 1.0), race.bar("b", 1.0, fails), race.bar("c", 1.0))
    assert [result.reason for result in results] == ["", f"block 2 of 2: {ORDINARY}", ""]
    assert [[len(result.blocks) for result in each] for each in race.rounds] == [[1, 1, 1], [2, 0, 2], [2, 0, 2]]
    assert race.steps[-2 * BLOCK - 3 :] == [*["a"] * BLOCK, "end", *["c"] * BLOCK, "end", "end"]
    assert not any(result.is_cut for results in race.rounds for result in results)


def test_when_the_time_is_over_nothing_new_begins_but_the_first_block(race):
    bars = [race.bar("a", 1.0), race.bar("b", 4.0), race.bar("c", 1.0)]
    results = race.measure(*bars, blocks=5, minutes=0.25, end=13.0)  # a is warm at 3, b at 15
    assert [result.reason for result in results] == ["", "", "not begun: 0.25 minutes were over"]
    assert [len(result.blocks) for result in results] == [1, 1, 0]
    assert all(result.is_cut for result in results)


@contextlib.contextmanager
def _counting():
    yield types.SimpleNamespace(launches=4, graph_launches=1, syncs=2)


@contextlib.contextmanager
def _no_counting():
    raise OSError("libcupti is not there")
    yield


def test_launches_are_counted_after_the_last_block(race):
    *_, (result,) = measure([race.bar("a", 1.0)], TASK, Timing(1, 3, 60.0), count=_counting)
    assert result.launches == Launches(5, 2)
    assert race.steps == ["start", "make a", *["a"] * (WARM + BLOCK), *["a"] * 3, "end"]
    *_, (result,) = measure([race.bar("a", 1.0)], TASK, Timing(1, 3, 60.0), count=_no_counting)
    assert (len(result.blocks), result.launches, result.reason) == (1, None, "")
    assert result.note == "launches were not counted: OSError: libcupti is not there"


def test_ctrl_c_ends_all_processes(race):
    with pytest.raises(KeyboardInterrupt):
        race.measure(race.bar("a", 1.0), race.bar("b", 1.0, (WARM + 1, KeyboardInterrupt())))
    assert race.events[-2:] == ["end", "end"]


def test_preparing_has_a_limit_of_its_own(race, monkeypatch):
    worker = StubWorker(row_worker)
    monkeypatch.setattr(row_schedule, "Worker", lambda: worker)
    race.measure(race.bar("a", 1.0), blocks=1, prepare_limit=300.0)
    assert worker.limits == [("prepare", 300.0), ("block", 60.0), ("notes", 60.0)]


# Processes of their own


class Quick(Step):
    """What happens at each step."""

    def __init__(self, happens=lambda: None):
        self.happens = happens

    def __call__(self):
        self.happens()

    def peak(self):
        return 10


def _crashes(task):
    return Quick(lambda: os._exit(9))


def _crashes_later(task):
    left = iter(range(3))
    return Quick(lambda: next(left, None) is None and os._exit(9))


def _hangs(task):
    return Quick(lambda: time.sleep(600))


def _announces(task):
    return Quick(lambda: announcements.announce("%s by Chainer's own, slower path", "convolution"))


def test_a_crash_and_a_row_that_hangs_are_rows_with_a_reason():
    died = "its process died: a crash, or the memory of the machine was not enough"
    makes = [_crashes, _crashes_later, _announces]
    *_, results = measure([BenchmarkRow(make.__name__, make) for make in makes], TASK, Timing(2, 1, 60.0))
    assert [result.reason.partition(";")[0] for result in results] == [died, f"block 1 of 2: {died}", ""]
    had_come_to = "imports, 0 kernels compiled, 0 plans of cuDNN built, 0 engines measured"
    assert results[0].reason.endswith(f"; it had come to: {had_come_to}")
    assert [result.note for result in results] == ["", "", "convolution by Chainer's own, slower path"]
    *_, (hung,) = measure([BenchmarkRow("hangs", _hangs)], TASK, Timing(1, 1, 3.0))
    assert hung.reason.partition(";")[0] == "no answer within 3 s"  # imports alone may have taken that
