"""Random networks under mixprec.offload on a simulated bus: time and memory of plans, as they are really followed."""

import chainer
import numpy as np
import pytest

import mixprec
from mixprec.activation_memory import made_plans, offloading, planning
from tests.activation_memory.simulated_bus import SimulatedBus, Work
from tests.cases import first

NETWORKS, PARTS = 200, 10


class Network:
    """A random chain with skip connections."""

    def __init__(self, seed):
        self._random = random = np.random.RandomState(seed)
        count = random.randint(6, 24)
        self._sizes = random.randint(8, 200, count)
        slower = np.where(random.rand(count, 1) < 0.4, 10, 1)
        self._times = random.rand(count, 2) * [1.0, 2.0] * self._sizes[:, None] * slower
        self._flags = random.rand(count, 2) < [0.3, 0.7]
        span = random.choice([2, 5, count])
        self._skips = [at - random.randint(1, span + 1) if random.rand() < 0.4 else None for at in range(count)]
        rate = self._sizes.sum() * 8 / self._times.sum() * 10 ** random.uniform(-0.7, 1.0)
        self.bus = rate, rate * random.uniform(0.5, 2.0), random.rand() * self._times.mean() * 0.1

    def run(self, bus):
        """Runs a round; returns the gradient of the input."""
        x = chainer.Variable(np.linspace(-1, 1, 50))
        outputs, h = [], x
        for size, times, flags, skip in zip(self._sizes, self._times, self._flags, self._skips, strict=True):
            node = Work(bus, size, *times, retains_output=flags[0], is_repeatable=flags[1])
            inputs = (h,) if skip is None or skip < 0 else (h, outputs[skip])
            (h,) = node.apply(inputs)
            outputs.append(h)
        del outputs
        loss = chainer.functions.sum(h)
        del h
        loss.backward()
        return x.grad


def _follow(monkeypatch, network, make):
    """Runs three rounds, the third by the plan of ``make(recording, bus)``.

    Returns:
        The plan, seconds and peak of the third round, and its gradient.
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


@pytest.mark.parametrize("part", first(0, range(PARTS), 2))
def test_plans_hold_what_they_promise(part, monkeypatch):
    """Within 10 % of the time and within the budget; the gradient is the same."""
    for seed in range(part, NETWORKS, PARTS):
        network, share, budgets = Network(seed), np.random.RandomState(seed + 1).rand(), []

        def within(recording, rates, share=share, budgets=budgets):
            """Plans with a budget between the least, of ``share`` 0, and what is kept at most, of 1."""
            low, high = planning.least(recording, smallest=1), planning.plan(recording, None, rates).peak
            budgets.append(int(low + share * (high - low)))
            return planning.plan(recording, budgets[0], rates, smallest=1)

        plan, seconds, peak, gradient = _follow(monkeypatch, network, within)
        np.testing.assert_array_equal(gradient, network.run(SimulatedBus(*network.bus)))
        assert abs(seconds / plan.schedule.seconds - 1) < 0.1, (seed, seconds, plan)
        assert peak <= budgets[0], (seed, peak, plan)
