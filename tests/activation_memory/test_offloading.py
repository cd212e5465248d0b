"""mixprec.offload on NumPy: the same bits, less memory, nothing left behind, and errors in one line."""

import functools
import gc

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.activation_memory import made_plans, planning
from mixprec.backends.file_copies import FileCopies
from mixprec.base.messages import OneLineError
from tests.activation_memory.offloaded_runs import SMALLEST, Run, differences
from tests.cases import first

STEPS, POISONED = range(6), {3}
GENEROUS = "100 GB"


def _memory(folder, budget=GENEROUS, **wishes):
    return mixprec.offload(budget, to=folder, **{"smallest": SMALLEST, **wishes})


@pytest.fixture
def at_least(monkeypatch):
    """Makes each plan that of the smallest budget that can be met, or of a share of the way from there to no limit."""

    def use(share=0.0):
        def plan(recording, budget, bus, **wishes):
            low = planning.least(recording, smallest=wishes["smallest"])
            high = planning.plan(recording, 1 << 50, bus, **wishes).schedule.peak
            return planning.plan(recording, int(low + share * (high - low)), bus, **wishes)

        monkeypatch.setattr(made_plans, "plan", plan)

    return use


@pytest.fixture
def slots(monkeypatch):
    """The slots of files that hold something, by their places there."""
    taken, take, give = set(), FileCopies.take, FileCopies.give

    def taking(self, size):
        slot = take(self, size)
        taken.add(slot.offset)
        return slot

    def giving(self, slot):
        taken.remove(slot.offset)
        give(self, slot)

    monkeypatch.setattr(FileCopies, "take", taking)
    monkeypatch.setattr(FileCopies, "give", giving)
    return taken


@pytest.mark.parametrize(
    ("name", "compute"), first(1, [("narrow_resnet18", "float16"), ("narrow_resnet18", None), ("lstm", "bfloat16")])
)
def test_the_same_bits(name, compute, tmp_path, at_least):
    """Gradients, masters, statistics, snapshots: with an overflow in the middle, and evaluations in between."""
    at_least()
    memory = _memory(tmp_path)
    found = Run(name, compute, memory).steps(STEPS, POISONED)
    assert not differences(found.results(), Run(name, compute).steps(STEPS, POISONED).results())
    (made,) = memory.plans
    assert made.schedule.bytes_out > 0
    assert made.schedule.peak < made.peak


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "share"), [(False, 0.3), (True, 0.7)])
def test_accumulation(recompute, share, tmp_path, at_least):
    """The rounds of a step have one plan."""
    at_least(share)
    memory = _memory(tmp_path, recompute=recompute)
    found = Run("narrow_resnet18", "float16", memory, accumulate=3).steps(STEPS, POISONED)
    expected = Run("narrow_resnet18", "float16", accumulate=3).steps(STEPS, POISONED)
    assert not differences(found.results(), expected.results())
    (made,) = memory.plans
    assert ("recompute" in made.schedule.choices) <= recompute


def _first_two(batch, *args):
    return tuple(part[:2] for part in batch(*args))


@pytest.mark.slow
def test_another_batch_and_another_branch(tmp_path, at_least):
    """A smaller batch gets a plan of its own; a step with another branch is right as well, and announced."""
    at_least()
    memory, found, expected = _memory(tmp_path), *(Run("narrow_resnet18", "float16") for _ in range(2))
    found.memory = memory
    for run in (found, expected):
        whole, skips = run.batch, run.model.predictor.layer4[1].forward
        for number in range(12):
            small = number % 4 == 3
            run.batch = functools.partial(_first_two, whole) if small else whole
            run.model.predictor.layer4[1].__dict__["forward"] = (lambda x: x + 1) if number in (6, 10) else skips
            run.step(number)
    assert not differences(found.results(), expected.results())
    assert len({made.peak for made in memory.plans}) >= 2


def test_passes_over_one_graph(tmp_path, at_least):
    """As GANs have them: two losses of one forward pass, and gradients by chainer.grad."""
    at_least()

    def steps(memory):
        np.random.seed(0)
        model = chainer.Sequential(L.Linear(8, 64), F.tanh, L.Linear(64, 64), F.sigmoid, L.Linear(64, 2))
        found = []
        for number in range(5):
            x = chainer.Variable(np.random.RandomState(number).normal(size=(32, 8)).astype(np.float32))
            with memory or chainer.using_config("train", True):
                y = model(x)
                first, second = F.sum(y[:, 0] ** 2), F.sum(F.exp(y[:, 1]))
                model.cleargrads()
                first.backward()
                found += [param.grad.copy() for param in model.params()]
                found += [gradient.array for gradient in chainer.grad([second], [x, model[2].W])]
                second.backward(retain_grad=True)
                found += [param.grad.copy() for param in model.params()]
        return found

    memory = _memory(tmp_path, smallest=1)
    for found, expected in zip(steps(memory), steps(None), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert memory.plans[0].schedule.bytes_out > 0


def test_double_backprop(tmp_path):
    memory = _memory(tmp_path, smallest=1)
    x = chainer.Variable(np.ones((64, 64), np.float32))
    with (
        memory,
        pytest.raises(RuntimeError, match=r"mixprec\.offload does not support double backprop: .* outside of it"),
    ):
        F.sum(F.tanh(x) ** 2).backward(enable_double_backprop=True)


@pytest.mark.slow
def test_an_exception_in_the_forward_pass(tmp_path, at_least, slots):
    """Leaves no slot taken and no array away; the steps after it are those without it."""
    at_least()
    memory = _memory(tmp_path)
    found, expected = Run("narrow_resnet18", "float16", memory), Run("narrow_resnet18", "float16")
    for number in STEPS:
        for run in (found, expected):
            forward = run.model.predictor.layer3[0].forward

            def fails(x, forward=forward):
                forward(x)
                raise ZeroDivisionError

            run.model.predictor.layer3[0].__dict__["forward"] = fails
            with pytest.raises(ZeroDivisionError):
                run.step(number)
            run.model.predictor.layer3[0].__dict__["forward"] = forward
            run.step(number)
    assert not differences(found.results(), expected.results())
    del found.model.predictor, run, forward, fails
    found.model.cleargrads()
    found.model.y = found.model.loss = None
    gc.collect()
    assert not slots


@pytest.mark.parametrize(("budget", "words"), [("16 XB", "found '16 XB'"), (-1, "found -1"), (None, "found None")])
def test_wrong_budgets(budget, words):
    with pytest.raises(OneLineError, match=r'budget must be a size such as "16 GB"') as caught:
        mixprec.offload(budget)
    assert words in str(caught.value)


def test_a_cpu_and_host(tmp_path):
    with pytest.raises(OneLineError, match=r'offload them to a folder; found "host"'):
        Run("resnet18", None, mixprec.offload(GENEROUS)).step(0)


def test_all_fits(tmp_path):
    """Nothing moves, and the report says so."""
    memory = _memory(tmp_path)
    run = Run("narrow_resnet18", "float16", memory)
    assert memory.report() == "no retained array is large enough to be moved"
    run.step(0)
    assert memory.report() == "the plan is made after two rounds"
    run.steps(range(1, 4))
    (made,) = memory.plans
    assert set(made.schedule.choices) == {"keep"}
    assert made.schedule.bytes_out == 0
    assert memory.report() == str(made)
