"""Captured steps of two ranks, which are threads, on the stand-in device: NCCL is in the graph."""

import contextlib
import re

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.function_hooks import TimerHook

from mixprec import announcements
from mixprec.distributed import buckets
from mixprec.graph_capture import CaptureError
from mixprec.optimizer import ranks as ranks_of_optimizer
from mixprec.optimizer.counted_losses import CountedLosses
from tests.graph_capture.captured_runs import Run
from tests.graph_capture.test_odd import Small, batch
from tests.stand_ins import graph_work, rank_threads
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.nccl_on_host import Communicator

OVERFLOWS = {(2, 0), (7, 1), (11, 0), (12, 1)}  # (step, rank)


@pytest.fixture
def ranks(host, monkeypatch):  # noqa: F811
    """Runs ``program(run, rank)`` on two ranks with these arguments of capture, ``None`` for eager runs."""
    monkeypatch.setattr(announcements, "_said", set())
    monkeypatch.setattr(ranks_of_optimizer, "MpiTransport", rank_threads.ThreadTransport)
    monkeypatch.setattr(buckets, "MOST", 2**10)

    def both(program, capture, **settings):
        def run(rank, of_threads):
            communicator = Communicator(of_threads)
            made = Run(capture, network=Small, communicator=communicator, **settings)
            made.nccl = communicator.nccl
            made.result = program(made, rank)
            made.found = made.results()
            return made

        with host.graphs.on_stream():
            return rank_threads.run(2, run)

    return both


def feed(run, rank, numbers, size=4):
    for number in numbers:
        run.once(*batch(2 * number + rank, size, bad=(number, rank) in OVERFLOWS))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), name


def masters(run):
    return {name: np.array(run.optimizer.master(param).array) for name, param in run.model.namedparams()}


def beside_eager(ranks, program, capture=None, **settings):
    """Runs a program eagerly, then captured; returns the captured runs."""
    eager = ranks(program, None, **settings)
    captured = ranks(program, {"required": True} if capture is None else capture, **settings)
    for one, other in zip(captured, eager, strict=True):
        assert_same(one.found, other.found)
    assert captured[0].nccl.done == captured[1].nccl.done
    return captured


def test_twenty_steps(ranks):
    def program(run, rank):
        feed(run, rank, range(20))

    first, second = beside_eager(ranks, program)
    assert first.step.replays == second.step.replays == 20 - 5
    assert first.optimizer.skipped == len(OVERFLOWS)
    assert_same(masters(first), masters(second))
    assert first.nccl.calls == second.nccl.calls


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_capture_that_fails_on_one_rank(ranks, caplog, where):
    """All go on eagerly. What the other one has captured is dropped, and nothing waits for ever."""

    def fails(model, x, t):
        loss = model(x, t)
        if model.is_bad and graph_work.is_capturing():
            if where == "forward":
                float(loss.array)
            else:
                loss = F.sum(F.forget(lambda x: _read(x), loss))
        return loss

    def program(run, rank):
        run.model.is_bad = rank == 1
        feed(run, rank, range(8))

    captured = beside_eager(ranks, program, {}, lossfun=fails)
    for run in captured:
        assert run.step.replays == 0
        assert re.match(r"on rank 1: \S+test_several_ranks.py:\d+ .*the host reads", run.step.why_not)
    assert sum("it cannot be captured: on rank 1" in text for text in caplog.messages) == 1


def _read(x):
    float(x.array)
    return x


@pytest.mark.parametrize("kind", ["required", "hook"])
def test_an_error_on_all_ranks_if_capture_is_required(ranks, kind):
    def fails(model, x, t):
        loss = model(x, t)
        if model.is_bad and graph_work.is_capturing():
            float(loss.array)
        return loss

    def program(run, rank):
        run.model.is_bad = rank == 1 and kind == "required"
        hook = TimerHook() if rank == 1 and kind == "hook" else contextlib.nullcontext()
        feed(run, rank, range(2))
        said = "on rank 1: .*the host reads" if kind == "required" else "on rank 1: a graph would leave out TimerHook"
        with pytest.raises(CaptureError, match=said), hook:
            feed(run, rank, [2, 3])
        if kind == "required":
            with pytest.raises(CaptureError, match=said):
                feed(run, rank, [4])
        else:
            feed(run, rank, range(2, 9))
            assert run.step.replays == 4
        return masters(run)

    first, second = ranks(program, {"required": True}, lossfun=fails)
    assert_same(first.result, second.result)


def test_a_step_that_differs_on_one_rank(ranks):
    """It is found out while steps are watched: the others learn it in the next call."""

    def changes(model, x, t):
        model.number += model.by
        return model(chainer.Variable(x) * model.number, t)

    def program(run, rank):
        run.model.number, run.model.by = 1.0, 0.0 if rank == 0 else 0.25
        feed(run, rank, range(10))

    captured = beside_eager(ranks, program, {}, lossfun=changes)
    assert re.match(r"on rank 1: .*: value of the function \w+ is .*, and was", captured[0].step.why_not)
    assert captured[0].step.why_not == captured[1].step.why_not


def test_a_difference_that_one_rank_finds(ranks):
    """A graph that has frozen a number; all take what the eager step has computed."""

    def changes(model, x, t):
        if graph_work.is_capturing() and model.is_bad:
            x = x * 2
        return model(x, t)

    def program(run, rank):
        run.model.is_bad = rank == 1
        feed(run, rank, range(8))

    captured = beside_eager(ranks, program, {}, lossfun=changes)
    for run in captured:
        assert re.match("on rank (0|1): .* is another one|on rank 1: .* by the graph", run.step.why_not)


def _replace_an_array(run):
    run.model.predictor.fc.b.array = run.model.predictor.fc.b.array.copy()


def _reset(run):
    run.step.reset()


@pytest.mark.parametrize("change", [_replace_an_array, _reset])
def test_a_graph_that_one_rank_drops(ranks, change):
    """All drop theirs in the same call, capture others, and launch these."""

    def program(run, rank):
        feed(run, rank, range(9))
        if rank == 1 and (run.step is not None or change is not _reset):
            change(run)
        feed(run, rank, range(9, 20))

    first, second = beside_eager(ranks, program)
    assert first.step.replays == second.step.replays
    assert first.step.replays == (9 if change is _replace_an_array else 8)
    assert first.step.why_not is None


@pytest.mark.parametrize("kind", ["hook", "forward pass", "shape"])
def test_a_call_that_is_eager_on_one_rank(ranks, kind, caplog):
    """It is eager on both; graphs stay."""

    def program(run, rank):
        feed(run, rank, range(9))
        if rank == 0:
            feed(run, rank, [9])
        elif kind == "hook":
            with TimerHook():
                feed(run, rank, [9])
        elif kind == "forward pass":
            run.model(*batch(50))
            feed(run, rank, [9])
        else:
            feed(run, rank, [9], size=2)
        feed(run, rank, range(10, 16))

    first, second = beside_eager(ranks, program, {})
    assert first.step.replays == second.step.replays == 16 - 5 - 1
    said = [text for text in caplog.messages if "in calls in which ranks differ: on rank 1: " in text]
    assert len(said) == 1


def test_other_shapes_on_other_ranks(ranks):
    """As long as they come at the same time; the last one of an epoch is smaller."""

    def program(run, rank):
        for _ in range(7):
            feed(run, rank, range(3), size=4 + rank)
            feed(run, rank, [3], size=2 + rank)

    first, second = beside_eager(ranks, program)
    assert first.step.replays == second.step.replays == 28 - 5 - 5


def test_shapes_that_change_on_each_rank_by_itself(ranks):
    """Graphs that were not captured together are not launched together."""

    def program(run, rank):
        random = np.random.RandomState(rank)
        for number in range(40):
            feed(run, rank, [number], size=(4, 2)[random.randint(2)])

    beside_eager(ranks, program, {})


@pytest.mark.parametrize("rank_of_update", [0, 1])
def test_an_update_in_place_of_a_captured_step(ranks, rank_of_update):
    """An error on all ranks in this step, and no rank that waits for ever."""

    def program(run, rank):
        feed(run, rank, range(8))
        assert run.step.replays == 3
        with pytest.raises(RuntimeError, match="rank 0 has called .*, rank 1 .*: let all ranks call the same"):
            if rank == rank_of_update:
                run.optimizer.update(run.model, *batch(8))
            else:
                feed(run, rank, [8])
        return True

    assert [run.result for run in ranks(program, {})] == [True, True]


def test_several_losses(ranks):
    def losses(model, *parts):
        for part in range(2):
            yield model(parts[2 * part], parts[2 * part + 1]) / 2

    def program(run, rank):
        for number in range(12):
            parts = [*batch(4 * number + rank), *batch(4 * number + 2 + rank, bad=number == 8 and rank == 1)]
            if run.step is None:
                run.optimizer.update(run._lossfun, *parts)
            else:
                run.step(*parts)

    first, _ = beside_eager(ranks, program, lossfun=lambda model, *parts: CountedLosses(losses(model, *parts), 2))
    assert first.step.replays == 7
    assert first.optimizer.skipped == 1
