"""mixprec.offload and programs that hold, change, leave and read again what it has moved: as without it."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.activation_memory import made_plans, planning
from mixprec.activation_memory.timetable import schedule
from mixprec.backends.file_copies import FileCopies

STEPS = 5


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Moves all that may move, small arrays too."""

    def plan(recording, budget, bus, **wishes):
        choices = ["swap" if buffer.needs[0] - buffer.held > 2 else "keep" for buffer in recording.buffers]
        return planning.Plan(schedule(choices, recording, None, bus), None, recording, 0.0, 0)

    monkeypatch.setattr(made_plans, "plan", plan)
    return mixprec.offload("100 GB", to=tmp_path, smallest=1)


class Model(chainer.ChainList):
    """Layers of one width."""

    def __init__(self):
        np.random.seed(0)
        super().__init__(*[L.Linear(16, 16) for _ in range(4)])

    def batch(self, number):
        """Some vectors."""
        return np.random.RandomState(number).normal(size=(32, 16)).astype(np.float32)


def _updated_between(model, x, within):
    with within():
        h = F.tanh(model[1](F.tanh(model[0](x))))
        y = model[2](F.sigmoid(h))
        F.sum(y**2).backward()
        model[2].W.array[...] *= 0.5
        F.sum(F.exp(0.01 * model[3](y))).backward()


def _backward_outside(model, x, within):
    with within():
        loss = F.sum(F.exp(model[1](F.tanh(model[0](x)))))
    loss.backward()
    loss.backward()


def _fields_that_are_read(model, x, within):
    with within():
        h = model[0](x)
        y, mask = F.dropout(h, return_mask=True)
        images = F.reshape(h, (32, 1, 4, 4))
        pooled, indexes = F.max_pooling_2d(images, 2, return_indices=True)
        back = F.upsampling_2d(pooled, indexes, 2, outsize=(4, 4))
        F.sum(F.exp(y * mask)).backward()
        F.sum(F.exp(back)).backward()


def _changed_in_place(model, x, within):
    with within():
        h = F.exp(model[0](x))
        y = F.tanh(F.tanh(h) * 1.5)
        h.array[...] *= 0.5
        F.sum(model[1](y)).backward()


def _unchained(model, x, within):
    with within():
        h = F.tanh(model[0](x))
        g = F.exp(h)
        y = F.tanh(model[1](g) * 1.5)
        if x[0, 0] > 0:
            h.unchain()
        F.sum(model[2](y)).backward()


PROGRAMS = (_updated_between, _backward_outside, _fields_that_are_read, _changed_in_place, _unchained)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__[1:])
def test_as_without(program, memory):
    found = []
    for within in (lambda: memory, lambda: chainer.using_config("train", True)):
        model, gradients = Model(), []
        for number in range(STEPS):
            model.cleargrads()
            np.random.seed(number)
            program(model, model.batch(number), within)
            gradients += [param.grad.copy() for param in model.params() if param.grad is not None]
        found.append(gradients)
    assert len(found[0]) == len(found[1])
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.usefixtures("no_collector")
def test_slots_are_free_without_the_garbage_collector(memory, monkeypatch):
    """The file does not grow from step to step."""
    taken, take = [], FileCopies.take
    monkeypatch.setattr(FileCopies, "take", lambda self, size: taken.append(take(self, size)) or taken[-1])
    model, places = Model(), []
    for number in range(20):
        with memory:
            F.sum(F.exp(model[1](F.tanh(model[0](model.batch(number)))))).backward()
        places.append({slot.offset for slot in taken})
        taken.clear()
    assert places[-1]
    assert set().union(*places[12:]) <= set().union(*places[4:12])


def test_parts_of_something_large_and_parameters_stay(memory):
    """Views of all images are no buffers, nor is a parameter that is turned."""
    model, images = Model(), np.random.RandomState(0).normal(size=(32 * 40, 16)).astype(np.float32)
    for number in range(STEPS):
        with memory:
            batch = F.reshape(images[32 * number : 32 * number + 32], (32, 16))
            F.sum(F.exp(F.linear(F.tanh(batch), F.transpose(model[0].W)))).backward()
    sizes = [buffer.size for buffer in memory.plans[0].recording.buffers]
    assert max(sizes) == 32 * 16 * 4


def test_more_memory_than_was_recorded(tmp_path, monkeypatch):
    """A plan is made again when something else has taken memory since."""
    memory = mixprec.offload("100 GB", to=tmp_path, smallest=1)
    model = Model()
    for number in range(STEPS):
        with memory:
            F.sum(F.exp(model[1](F.tanh(model[0](model.batch(number)))))).backward()
        if number == 3:
            before = memory.plans[0].schedule.peak
            monkeypatch.setattr(FileCopies, "allocated", lambda self: 60 * 10**9)
    assert memory.plans[0].schedule.peak > before + 50 * 10**9


def test_rounds_that_never_come_again(memory, caplog):
    model = Model()
    for length in range(20):
        with memory:
            F.sum(F.exp(F.tanh(model[0](model.batch(0)[: 5 + length])))).backward()
    assert "no two of 16 recorded rounds had the same functions and shapes" in caplog.text
    assert not memory.plans


def test_two_threads_have_one_each(memory):
    with memory, pytest.raises(RuntimeError, match="cannot be nested"), memory:
        pass
