"""Random networks under mixprec.offload on a simulated bus: time and memory of plans, as they are really followed."""

import functools

import chainer
import numpy as np
import pytest

import mixprec
from mixprec.activation_memory import made_plans, offloading, planning
from mixprec.activation_memory.recording import Bus
from mixprec.activation_memory.timetable import schedule
from tests.activation_memory.simulated_bus import ConvolutionWork, SimulatedBus, Work
from tests.cases import first

NETWORKS, PARTS = 200, 10


class Network:
    """A random chain with skip connections."""

    def __init__(self, seed):
        self._random = random = np.random.RandomState(seed)
        count = random.randint(6, 24)
        self._sizes = random.randint(8, 200, count)
        self._kinds = random.rand(count) < 0.4
        self._times = random.rand(count, 2) * [1.0, 2.0] * self._sizes[:, None] * np.where(self._kinds, 10, 1)[:, None]
        self._flags = random.rand(count, 2) < [0.3, 0.7]
        span = random.choice([2, 5, count])
        self._skips = [at - random.randint(1, span + 1) if random.rand() < 0.4 else None for at in range(count)]
        rate = self._sizes.sum() * 8 / self._times.sum() * 10 ** random.uniform(-0.7, 1.0)
        self.bus = rate, rate * random.uniform(0.5, 2.0), random.rand() * self._times.mean() * 0.1

    def run(self, bus):
        """Runs a round; returns the gradient of the input."""
        x = chainer.Variable(np.linspace(-1, 1, 50))
        outputs, h = [], x
        for size, is_convolution, times, flags, skip in zip(
            self._sizes, self._kinds, self._times, self._flags, self._skips, strict=True
        ):
            kind = ConvolutionWork if is_convolution else Work
            node = kind(bus, size, *times, retains_output=flags[0], is_repeatable=flags[1])
            inputs = (h,) if skip is None or skip < 0 else (h, outputs[skip])
            (h,) = node.apply(inputs)
            outputs.append(h)
        del outputs
        loss = chainer.functions.sum(h)
        del h
        loss.backward()
        return x.grad


def _follow(monkeypatch, network, make):
    """Runs three rounds, the third by the plan of ``make(recording, budget, bus)``.

    Returns:
        The plan, seconds and peak of the third round, its gradient, and the recording.
    """
    bus = SimulatedBus(*network.bus)
    monkeypatch.setattr(offloading, "copies_for", lambda array, to: bus)
    monkeypatch.setattr(made_plans, "plan", lambda recording, budget, rates, **_: make(recording, rates))
    memory = mixprec.offload("1 TB", to="a simulated bus", smallest=1)
    for _ in range(2):
        with memory:
            network.run(bus)
    began = bus.now
    bus.peak()
    with memory:
        gradient = network.run(bus)
    return memory.plans[0], bus.now - began, bus.peak(), gradient


def _made(recording, budget, rates, choices):
    found = schedule(choices, recording, budget, rates)
    return None if found is None else planning.Plan(found, budget, recording, 0.0, 0)


def _may_move(buffer):
    return buffer.needs[0] - buffer.held > 2


def _kept_first(budget, recording, rates):
    """Keeps what fits, in the order in which it is made, and swaps the rest."""
    choices = ["swap" if _may_move(buffer) else "keep" for buffer in recording.buffers]
    best = _made(recording, budget, rates, choices)
    for number in range(len(choices)):
        more = [*choices[:number], "keep", *choices[number + 1 :]]
        found = _made(recording, budget, rates, more)
        if found is not None:
            choices, best = more, found
    return best


def _vdnn(budget, recording, rates):
    """Swaps the inputs of convolutions; all that may move, if that does not fit."""
    movable = [_may_move(buffer) for buffer in recording.buffers]
    for convolutions in (True, False):
        choices = [
            "swap" if may and (buffer.is_convolution_input or not convolutions) else "keep"
            for buffer, may in zip(recording.buffers, movable, strict=True)
        ]
        found = _made(recording, budget, rates, choices)
        if found is not None:
            return found
    raise AssertionError("swapping all does not fit")


@pytest.mark.slow
@pytest.mark.parametrize("part", first(3, range(PARTS), 3))
def test_plans_hold_what_they_promise(part, monkeypatch):
    """Within 10 % of the time, within the budget, and not slower than two simpler rules; the gradient is the same."""
    for seed in range(part, NETWORKS, PARTS):
        network, share = Network(seed), np.random.RandomState(seed + 1).rand()
        expected = network.run(SimulatedBus(*network.bus))
        within = _Within(share)
        plan, seconds, peak, gradient = _follow(monkeypatch, network, within.plan)
        np.testing.assert_array_equal(gradient, expected)
        assert abs(seconds / plan.schedule.seconds - 1) < 0.1, (seed, seconds, plan)
        assert peak <= within.budget, (seed, peak, plan)
        for rule in (_kept_first, _vdnn):
            _, other, _, gradient = _follow(monkeypatch, network, functools.partial(rule, within.budget))
            np.testing.assert_array_equal(gradient, expected)
            assert seconds <= other * (1 + 1e-9), (seed, rule, seconds, other, plan)


class _Within:
    """Plans with a budget between the least, of ``share`` 0, and what is kept at most, of 1."""

    def __init__(self, share):
        self._share = share
        self.budget = None

    def plan(self, recording, rates):
        """Makes a plan, and keeps its budget."""
        low = planning.least(recording, smallest=1)
        high = planning.plan(recording, None, rates).peak
        self.budget = int(low + self._share * (high - low))
        return planning.plan(recording, self.budget, rates, smallest=1)


def test_a_fast_bus_hides_all(monkeypatch):
    """Copies that are fast enough cost nothing."""
    network = Network(3)
    network.bus = 1e12, 1e12, 0.0

    def least(recording, rates):
        return planning.plan(recording, planning.least(recording), Bus(*network.bus), recompute=False)

    plan, seconds, _, _ = _follow(monkeypatch, network, least)
    assert plan.schedule.bytes_out > 0
    assert abs(seconds / plan.seconds - 1) < 1e-3
