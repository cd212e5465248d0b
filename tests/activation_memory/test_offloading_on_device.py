"""mixprec.offload on the stand-in device: a hard limit of memory, captured steps, and copies in any legal order."""

import gc
import itertools

import numpy as np
import pytest

import mixprec
from mixprec.activation_memory import made_plans, planning
from mixprec.activation_memory.buffers import LiveBuffer
from tests.cases import first
from tests.graph_capture.captured_runs import REQUIRED, Run, assert_same, batch, eager
from tests.stand_ins import nan_pool
from tests.stand_ins.capture_sides import HOST, device, host  # noqa: F401  (fixtures)
from tests.stand_ins.copies_on_host import HostCopies

pytestmark = pytest.mark.usefixtures("host")
STEPS = 12
ORDERS = 50
IMAGES = 64  # in a batch


class Offloaded(Run):
    """A run whose steps are in the block of ``memory``."""

    def __init__(self, memory, *args, **wishes):
        super().__init__(*args, **wishes)
        self.memory = memory

    def once(self, *arguments):
        """Runs a step."""
        with self.memory:
            super().once(*arguments)


def _memory(budget="1 TB", **wishes):
    return mixprec.offload(budget, **{"smallest": 2**10, **wishes})


@pytest.fixture
def least(monkeypatch):
    """Makes each plan that of the smallest budget, and keeps these budgets."""
    budgets = []

    def plan(recording, budget, bus, **wishes):
        budgets.append(planning.least(recording, smallest=wishes["smallest"]))
        return planning.plan(recording, budgets[-1], bus, **wishes)

    monkeypatch.setattr(made_plans, "plan", plan)
    return budgets


def _peaks(run, steps):
    """Returns the peak of each step, with its gradients."""
    peaks = []
    for number in steps:
        with nan_pool.metering() as meter:
            meter.peak = nan_pool.in_use()
            run.run([number], size=IMAGES)
            # The run keeps what it has seen: that goes to the host, without its graph.
            run.observed[-1] = {name: run._received(value) for name, value in run.observed[-1].items()}
            peaks.append(meter.peak)
    return peaks


def _in_use():
    """What is in use when runs are gone."""
    gc.collect()
    return nan_pool.in_use()


@pytest.mark.slow
def test_a_hard_limit(least, monkeypatch):
    """The model fails without, and trains with: at every step there is no more than the limit, down to the least."""
    _peaks(Run(None), range(1))  # workspaces are there from now on
    used = _in_use()
    kept = max(_peaks(Run(None), range(4))) - used
    used = _in_use()
    _peaks(Offloaded(_memory(), None), range(3))
    smallest = least[0] - used
    assert smallest < 0.9 * kept
    monkeypatch.setattr(made_plans, "plan", planning.plan)
    expected = Run(None)
    _peaks(expected, range(8))
    expected = expected.results()
    for share in (1.0, 0.75, 0.5, 0.25, 0.0):
        limit = _in_use() + int(smallest + share * (kept - smallest))
        with nan_pool.metering(limit):
            if share < 1.0:
                with pytest.raises(MemoryError):
                    _peaks(Run(None), range(2))
                gc.collect()
            run = Offloaded(_memory(limit), None)
            assert max(_peaks(run, range(8))) <= limit
        assert_same(run, expected)
        assert run.memory.plans[0].schedule.bytes_out > 0 or share == 1.0
        run = None


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "wishes"), [(False, {}), (True, {"second_stream": True})])
def test_captured_in_any_order(recompute, wishes, least):
    """Each launch has its copies in another legal order, and the same bits."""
    memory = _memory(recompute=recompute)
    HOST.graphs.seeds = itertools.count()
    try:
        run = Offloaded(memory, {**REQUIRED, **wishes}, dropout=0.3)
        run.run(range(8 + ORDERS))
    finally:
        HOST.graphs.seeds = None
    assert run.step.replays >= ORDERS
    assert memory.plans[0].schedule.bytes_out > 0
    assert_same(run, eager(8 + ORDERS, dropout=0.3))


@pytest.mark.parametrize("fault", first(1, ["before it is read", "before memory is given back", "for the device"]))
def test_a_missing_wait_is_found(fault, least, monkeypatch):
    """Without one of the waits some order gives other numbers."""
    if fault == "before memory is given back":

        def leave(self, original=LiveBuffer.leave):
            self._leaving = None
            original(self)

        monkeypatch.setattr(LiveBuffer, "leave", leave)
    elif fault == "before it is read":

        def ensure(self, original=LiveBuffer.ensure):
            waits, self._copies.wait = self._copies.wait, lambda mark: None
            try:
                original(self)
            finally:
                self._copies.wait = waits

        monkeypatch.setattr(LiveBuffer, "ensure", ensure)
    else:
        monkeypatch.setattr(HostCopies, "_after_main", lambda self, stream: None)
    HOST.graphs.seeds = itertools.count()
    try:
        run = Offloaded(_memory(recompute=False), {})
        run.run(range(STEPS))
    finally:
        HOST.graphs.seeds = None
    found, expected = run.results(), eager(STEPS)
    differs = [name for name, value in expected.items() if found[name].tobytes() != np.asarray(value).tobytes()]
    assert differs or run.step.why_not


def test_without_the_block_it_is_another_step(least):
    """A graph that copies is not launched outside of the block, nor the other way round."""
    memory = _memory()
    run = Offloaded(memory, REQUIRED).run(range(8))
    copies = len(memory._copies.asked)
    Run.once(run, *map(np.copy, batch(8)))
    assert len(memory._copies.asked) == copies
    assert run.step.report().count("\n") == 1  # two specializations
