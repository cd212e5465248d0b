"""Captured steps of two ranks, which are threads, on the stand-in device: NCCL is in the graph."""

import contextlib
import copy
import functools
import re

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.function_hooks import TimerHook

import mixprec
from mixprec.backends import is_of_numpy
from mixprec.backends.cudnn import settings
from mixprec.backends.joint_batch import NcclJointBatch
from mixprec.distributed import buckets
from mixprec.graph_capture import CaptureError
from mixprec.graph_capture.graph_step import TrainingStep
from mixprec.optimizer import overflow_watchdog
from mixprec.optimizer import ranks as ranks_of_optimizer
from mixprec.optimizer.counted_losses import CountedLosses
from tests import mpi
from tests.comparison import assert_same_bits
from tests.graph_capture.captured_runs import Run
from tests.graph_capture.test_odd import Small, batch
from tests.stand_ins import fake_cudnn, graph_work, rank_threads
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.nccl_on_host import Communicator

OVERFLOWS = {(2, 0), (7, 1), (11, 0), (12, 1)}  # (step, rank)


@pytest.fixture
def ranks(host, announced, monkeypatch):  # noqa: F811
    """Runs ``program(run, rank)`` on two ranks with these arguments of capture, ``None`` for eager runs."""
    monkeypatch.setattr(ranks_of_optimizer, "MpiTransport", rank_threads.ThreadTransport)
    monkeypatch.setattr(buckets, "MOST", 2**10)

    def both(program, capture, **settings):
        def run(rank, of_threads):
            communicator = Communicator(of_threads)
            own = copy.deepcopy({"network": Small, **settings})
            if own["network"] is Joint:
                own["network"] = functools.partial(Joint, communicator)
            made = Run(capture, communicator=communicator, **own)
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


def masters(run):
    return {name: np.array(run.optimizer.master(param).array) for name, param in run.model.namedparams()}


def beside_eager(ranks, program, capture=None, **settings):
    """Runs a program eagerly, then captured; returns the captured runs."""
    eager = ranks(program, None, **settings)
    captured = ranks(program, {"required": True} if capture is None else capture, **settings)
    for one, other in zip(captured, eager, strict=True):
        assert_same_bits(one.found, other.found)
    assert captured[0].nccl.done == captured[1].nccl.done
    return captured


def test_twenty_steps(ranks, monkeypatch):
    """A launch has one message of its own, and a capture none: the other rank might not be there to answer."""
    messages, start = ([], []), rank_threads.ThreadTransport.start

    def noted(transport, array):
        messages[transport.rank][-1].append(array.size)
        assert not graph_work.is_capturing()
        return start(transport, array)

    monkeypatch.setattr(rank_threads.ThreadTransport, "start", noted)

    def program(run, rank):
        for number in range(20):
            messages[rank].append([])
            feed(run, rank, [number])

    first, second = beside_eager(ranks, program)
    assert first.step.replays == second.step.replays == 20 - 5
    assert first.optimizer.skipped == len(OVERFLOWS)
    assert_same_bits(masters(first), masters(second))
    assert first.nccl.calls == second.nccl.calls
    assert messages[0][-15:] == messages[1][-15:] == 15 * [[2]]


class Faulty(chainer.FunctionNode):
    """Cannot be captured by a rank that is bad."""

    def __init__(self, where):
        self._where = where

    def check_type_forward(self, in_types):
        pass

    def _fail_in(self, where):
        if where == self._where and graph_work.is_capturing():
            raise ZeroDivisionError("planted")

    def forward(self, inputs):
        self._fail_in("forward")
        return inputs

    def backward(self, indexes, grads):
        self._fail_in("backward")
        return grads


class FaultyNetwork(Small):
    where = None

    def forward(self, x):
        h = F.relu(Faulty(self.where).apply((self.bn(self.conv(x)),))[0])
        return self.fc(F.reshape(F.average_pooling_2d(h, h.shape[2:]), (h.shape[0], -1)))


@pytest.mark.parametrize("where", ["backward", pytest.param("forward", marks=pytest.mark.slow)])
def test_a_capture_that_fails_on_one_rank(ranks, caplog, where):
    """All go on eagerly. What the other one has captured is dropped, and nothing waits for ever."""
    joined = []

    def program(run, rank):
        if rank == 1 and run.step is not None:
            run.model.predictor.where = where
            join = run.nccl.join
            run.nccl.join = lambda: joined.append((graph_work.is_capturing(), run.nccl._is_joined)) or join()
        feed(run, rank, range(8))

    captured = beside_eager(ranks, program, {}, network=FaultyNetwork)
    for run in captured:
        assert run.step.replays == 0
        assert re.match(r"on rank 1: .*Faulty.*: planted", run.step.why_not)
    assert sum("it cannot be captured: on rank 1" in text for text in caplog.messages) == 1
    # A capture ends when all streams are joined, also if it fails.
    assert [is_joined for is_capturing, is_joined in joined if is_capturing] == [where == "forward"]


@pytest.mark.slow
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
    assert_same_bits(first.result, second.result)


@pytest.mark.slow
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


@pytest.mark.slow
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
        assert re.match("on rank (0|1): .* differs between|on rank 1: .* in the graph", run.step.why_not)


@pytest.mark.slow
def test_ranks_whose_gradients_vary_from_run_to_run(ranks, monkeypatch):
    """Each rank has as many eager steps and launches as the other, whichever of them finds a difference."""
    random, node = np.random.default_rng(0), fake_cudnn.NODES["conv_wgrad"]

    def compute(*arguments):
        return tuple(array * random.normal(1, 0.7, array.shape) for array in map(np.array, node.compute(*arguments)))

    monkeypatch.setitem(fake_cudnn.NODES, "conv_wgrad", node._replace(compute=compute))

    def program(run, rank):
        settings.configure(deterministic=False)
        feed(run, rank, range(24))
        return masters(run)

    first, second = ranks(program, {"required": True})
    assert first.step.replays == second.step.replays > 0
    assert first.nccl.done == second.nccl.done
    assert_same_bits(first.result, second.result)


@pytest.mark.slow
def test_an_argument_of_one_rank_that_no_graph_can_take(ranks):
    """That call is eager on both; graphs stay."""

    def lossfun(model, x, t, *rest):
        return model(x, t)

    def program(run, rank):
        feed(run, rank, range(8))
        replays = run.step.replays
        x, t = batch(16 + rank, 4)
        run.once(x, t, *([bytearray(1)] if rank else []))
        feed(run, rank, range(9, 14))
        return run.step.replays - replays

    for run in ranks(program, {}, lossfun=lossfun):
        assert run.result == 5
        assert run.step.why_not is None


def _replace_an_array(run):
    run.model.predictor.fc.b.array = run.model.predictor.fc.b.array.copy()


@pytest.mark.slow
def test_a_graph_that_one_rank_drops(ranks):
    """All drop theirs in the same call, capture others, and launch these."""

    def program(run, rank):
        feed(run, rank, range(8))
        if rank == 1:
            _replace_an_array(run)
        feed(run, rank, range(8, 17))

    first, second = beside_eager(ranks, program)
    assert first.step.replays == second.step.replays
    assert 3 < first.step.replays < 17 - 5 - 2
    assert first.step.why_not is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hook", "shape"])
def test_a_call_that_is_eager_on_one_rank(ranks, kind, caplog):
    """It is eager on both; graphs stay."""

    def program(run, rank):
        feed(run, rank, range(7))
        if rank == 0:
            feed(run, rank, [9])
        elif kind == "hook":
            with TimerHook():
                feed(run, rank, [9])
        else:
            feed(run, rank, [9], size=2)
        feed(run, rank, range(10, 12))

    first, second = beside_eager(ranks, program, {})
    assert first.step.replays == second.step.replays == 10 - 5 - 1
    said = [text for text in caplog.messages if "in calls in which ranks differ: on rank 1: " in text]
    assert len(said) == 1


@pytest.mark.parametrize("rank_of_update", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_an_update_in_place_of_a_captured_step(ranks, rank_of_update):
    """An error on all ranks in this step, and no rank that waits for ever."""

    def program(run, rank):
        feed(run, rank, range(8))
        assert run.step.replays == 3
        step = functools.partial(run.optimizer.update, run.model) if rank == rank_of_update else run.step
        with pytest.raises(RuntimeError, match=r"rank 0 has called .*, rank 1 .*: let all ranks call the same"):
            step(*batch(8))
        return True

    assert [run.result for run in ranks(program, {})] == [True, True]


@pytest.mark.slow
def test_processes():
    """With MPI, which waits for ever if processes ask it for other things."""
    lines = mpi.run(2, "import tests.graph_capture.rank_program as program; program.main()")
    said = "7 launches, same: True, rank 0 has called update(), rank 1 a captured step: let all ranks call the same"
    assert lines == [f"{rank}: {said}" for rank in range(2)]


@pytest.mark.slow
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


class Centered(chainer.FunctionNode):
    """Takes the mean over both ranks away, in the midst of a pass, as a batch normalization over processes."""

    def __init__(self, communicator):
        self._of_ranks = NcclJointBatch(communicator, "/bn")

    def forward(self, inputs):
        return (inputs[0] - self._of_ranks.sum(inputs[0]) / 2,)

    def backward(self, indexes, grads):
        return (chainer.Variable(grads[0].array - self._of_ranks.sum(grads[0].array) / 2),)


class Joint(Small):
    def __init__(self, communicator, dropout):
        super().__init__(dropout)
        self._communicator = communicator

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        h = F.reshape(F.average_pooling_2d(h, h.shape[2:]), (h.shape[0], -1))
        return self.fc(h if is_of_numpy(h.array) else Centered(self._communicator).apply((h,))[0])


@pytest.mark.slow
def test_sums_in_the_midst_of_a_pass(ranks):
    """They keep their order among those of gradients, in a graph as well."""

    def program(run, rank):
        feed(run, rank, range(9))

    first, second = beside_eager(ranks, program, network=Joint)
    assert first.step.replays == 4
    assert first.nccl.calls == second.nccl.calls


@pytest.mark.slow
def test_a_state_that_is_new_on_one_rank(ranks, monkeypatch):
    """It was not there to be compared: all compare once more."""
    state, news = TrainingStep.state, []

    def changed(self):
        found = state(self)
        if self._optimizer.communicator.rank == 1 and len(news) < 2:
            news.append(found.pop("t") if news else None)
        return found

    monkeypatch.setattr(TrainingStep, "state", changed)

    def program(run, rank):
        feed(run, rank, range(9))

    first, second = beside_eager(ranks, program)
    assert first.step.replays == second.step.replays == 9 - 5 - 1


@pytest.mark.slow
@pytest.mark.parametrize("scale", [mixprec.DynamicLossScale(init=2.0**7, patience=4), mixprec.StaticLossScale(8, 4)])
def test_training_that_has_diverged_ends_on_all_ranks_in_the_same_step(ranks, monkeypatch, scale):
    """A number that was fetched arrives sooner on one rank than on another."""
    fetch = overflow_watchdog.to_host_async

    def program(run, rank):
        class Fetched:
            done = rank == 1

            def __init__(self, value):
                self.value = fetch(value).value

        monkeypatch.setattr(overflow_watchdog, "to_host_async", Fetched)

        def train():
            for number in range(60):
                run.once(*batch(2 * number + rank, bad=rank == 0 and number > 6))

        with pytest.raises(mixprec.LossScaleExhausted):
            train()
        return len(run.observed)

    first, second = ranks(program, {}, loss_scale=scale)
    assert first.result == second.result <= 7 + 4 + 16
    assert first.step.replays > 3


@pytest.mark.slow
def test_a_random_program(ranks):
    """Each rank does something else between its steps."""

    def program(run, rank):
        random, common = np.random.RandomState(10 + rank), np.random.RandomState(1)
        for number in range(20):
            together, action = common.rand() < 0.3, (common if common.rand() < 0.3 else random).randint(12)
            if together:
                run.optimizer.lr = 0.1 * common.rand()
            size = 4 if action else 2
            if action == 1:
                run.model(*batch(100 + number))
            elif action == 2:
                _replace_an_array(run)
            elif action == 3 and run.step is not None:
                run.step.reset()
            elif action == 4 and together:
                run.model.predictor.conv.disable_update()
            elif action == 5 and together:
                run.model.predictor.conv.enable_update()
            with TimerHook() if action == 6 else contextlib.nullcontext():
                run.once(*batch(2 * number + rank, size, bad=action == 7))

    beside_eager(ranks, program, {"graphs": 2})
