"""Captured training beside eager training, bit for bit: on a GPU by ``pytest -m gpu``, and on the stand-in."""

import gc
import inspect
import logging
import re

import chainer
import chainer.functions as F
import numpy as np
import pytest

from mixprec import functions
from mixprec.graph_capture import CaptureError, capture_evaluation
from tests.cases import first
from tests.comparison import assert_same_bits
from tests.graph_capture.captured_runs import FIRST_REPLAY, POISONED, REQUIRED, Network, Run, assert_same, batch, eager
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides

STEPS = 20


class Dropping(Network):
    """Its blocks drop half of the images."""

    def __init__(self, dropout):
        super().__init__(dropout)
        for block in self.stages:
            block.stochastic_depth = 0.5


RUNS = [("Adam", {"dropout": 0.5}), ("LAMB", {"compute": "bfloat16"}), ("MomentumSGD", {"network": Dropping})]


@both_sides
@pytest.mark.parametrize(("rule", "settings"), first(1, RUNS))
def test_twenty_steps(side, rule, settings):  # noqa: F811
    """With another learning rate in each, two that overflow, and a loss scale that grows; no launch reads or waits."""
    captured = Run(REQUIRED, rule, side=side, **settings).run(range(FIRST_REPLAY))
    assert captured.step.replays == 0
    with side.without_reads():
        captured.run(range(FIRST_REPLAY, STEPS))
    assert captured.step.replays == STEPS - FIRST_REPLAY
    assert captured.step.why_not is None
    assert captured.optimizer.skipped == len(POISONED)
    assert_same(captured, eager(STEPS, rule=rule, side=side, **settings))


@both_sides
def test_an_overflow_in_a_graph(side):  # noqa: F811
    """Promise 2 of docs/numerics.md: nothing moves but the loss scale, which is halved, and its counters."""
    run = Run(REQUIRED, side=side).run(range(min(POISONED)))
    before, scale = run.results(), run.optimizer.loss_scale
    replays = run.step.replays
    run.run([min(POISONED)])
    assert run.step.replays == replays + 1
    assert (run.optimizer.loss_scale, run.optimizer.skipped) == (scale / 2, 1)
    assert run.optimizer.last_step_skipped
    after = run.results()
    moved = {name for name, value in before.items() if after[name].tobytes() != value.tobytes()}
    assert {name for name in moved if not name.startswith("gradient of ")} == {
        "loss_scale",
        "skipped",
        *(name for name in moved if name.startswith("optimizer/mixprec/")),
    }
    assert "optimizer/mixprec/loss_scale/value" in moved


@pytest.mark.slow
@both_sides
@pytest.mark.parametrize("kind", ["variable", "device"])
def test_arguments(side, kind):  # noqa: F811
    send = {"host": np.copy, "device": side.send, "variable": lambda array: chainer.Variable(side.send(array))}[kind]
    captured = Run(REQUIRED, side=side).run(range(8), send=send)
    assert captured.step.replays == 3
    assert_same(captured, eager(8, side=side))


@pytest.mark.slow
@both_sides
def test_a_loss_function_of_the_users(side):  # noqa: F811
    def lossfun(model, x, t):
        y = model.predictor(x)
        loss = functions.softmax_cross_entropy(y, t, smoothing=0.1) + 2.0**-6 * F.sum(F.square(y))
        chainer.report({"loss": loss, "constant": 3.0}, model)
        return loss

    captured, expected = (Run(capture, lossfun=lossfun, side=side).run(range(9)) for capture in (REQUIRED, None))
    assert captured.step.replays == 4
    for observed in (*captured.observed, *expected.observed):
        assert observed.pop("main/constant") == 3.0
    assert_same(captured, expected)


@pytest.mark.slow
@both_sides
@pytest.mark.parametrize(
    ("wishes", "replays"),
    # Sixteen steps, every second one with a batch of 2, of which the fifth overflows.
    [({}, 3 + 2), ({"other_shapes": "eager"}, 3), ({"graphs": 1}, 1)],
)
def test_another_batch_shape(side, wishes, replays):  # noqa: F811
    """A graph of its own or none. What the model keeps and the gradients are those of the step that was run last."""
    captured, expected = Run({**REQUIRED, **wishes}, side=side), Run(None, side=side)
    for number in range(16):
        for run in (captured, expected):
            run.run([number], size=2 if number % 2 else 4)
        for found, other in ((captured.kept(), expected.kept()), (captured.gradients(), expected.gradients())):
            assert_same_bits(found, other)
        returned = side.receive(captured.observed[-1]["returned"].array)
        assert captured.kept()["loss"].tobytes() == returned.tobytes()
    assert captured.step.replays == replays
    assert_same(captured, expected)


@pytest.mark.slow
@both_sides
def test_evaluation_between(side):  # noqa: F811
    """Eager or captured; training goes on in its graph."""

    def evaluations(run, evaluate, steps):
        def own(*arguments):
            with chainer.using_config("train", False), chainer.no_backprop_mode():
                return run.model(*arguments)

        images = [side.send(array) for array in batch(100, 2)]
        found = []
        for number in range(steps):
            run.run([number])
            found += [run.evaluate(function, *images) for function in (own, evaluate or own)]
        return found

    captured = Run(REQUIRED, dropout=0.5, side=side)
    evaluate = capture_evaluation(captured.model, required=True)
    found = evaluations(captured, evaluate, 12)
    assert captured.step.replays == evaluate.replays == 12 - FIRST_REPLAY
    expected = evaluations(Run(None, dropout=0.5, side=side), None, 12)
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)
    assert_same(captured, eager(12, dropout=0.5, side=side))


@both_sides
@pytest.mark.parametrize(("resumed", "middle"), first(1, [("captured", 8), ("captured", 4), ("eager", 8)]))
def test_snapshot_in_the_middle_and_resume(side, resumed, middle, tmp_path):  # noqa: F811
    """Both the run that was saved and the one that goes on from the file are the run that nobody interrupted."""
    settings = {"rule": "Adam", "dropout": 0.5, "side": side}
    expected = eager(16, **settings)
    saved = Run(REQUIRED, **settings).run(range(middle))
    saved.save(tmp_path)
    saved.run(range(middle, 16))
    assert saved.step.replays == 16 - FIRST_REPLAY
    assert_same(saved, expected)
    other = Run(REQUIRED if resumed == "captured" else None, **settings)
    other.load(tmp_path)
    other.observed = saved.observed[:middle]
    other.run(range(middle, 16))
    assert_same(other, expected)
    assert resumed == "eager" or other.step.replays == 16 - middle - FIRST_REPLAY


# --- what cannot be captured: loss functions, with the line that does what they are called after


def reads(model, x, t):
    loss = model(x, t)
    if float(loss.array) < 1e9:  # fault
        loss = loss * 1.0
    return loss


def uploads(model, x, t):
    x = x * model.xp.asarray(np.ones(16, np.float32))  # fault
    return model(x, t)


def multiplies_by_a_number(model, x, t):
    model.count += 1
    return model(x, t) * (1 + model.count / 64)  # fault


def carries(model, x, t):
    loss = model(x, t)
    total = loss + sum(0.25 * x for x in model.carried)  # fault
    model.carried = [chainer.Variable(loss.array.copy(), requires_grad=False)]
    return total


def does_other_things(model, x, t):
    model.count += 1
    loss = model(x, t)
    return F.sum(loss) if model.count % 2 else F.sum(F.square(loss))  # fault


FAULTS = {
    reads: "the host reads from the device",
    uploads: "host data is copied to the device",
    multiplies_by_a_number: "value of the function MulConstant is",
    carries: "memory that is kept from one step to the next",
    does_other_things: "the step requests the function S",
}


def _faulty(fault, capture, side):  # noqa: F811
    run = Run(capture, lossfun=fault, side=side)
    run.model.count, run.model.carried = 0, []
    return run


def _line_of(fault):
    lines, first = inspect.getsourcelines(fault)
    (number,) = (number for number, line in enumerate(lines) if "# fault" in line)
    return f"{__file__}:{first + number} "


@both_sides
@pytest.mark.parametrize("fault", first(2, FAULTS))
def test_a_fault_is_named_with_its_line_and_the_run_goes_on(side, fault, caplog):  # noqa: F811
    with caplog.at_level(logging.WARNING, "mixprec"):
        captured = _faulty(fault, {}, side).run(range(9))
    (record,) = caplog.records
    assert captured.step.replays == 0
    assert captured.step.why_not in record.getMessage()
    assert captured.step.why_not in captured.step.report()
    assert captured.step.why_not.startswith(_line_of(fault))
    assert FAULTS[fault] in captured.step.why_not
    assert_same(captured, _faulty(fault, None, side).run(range(9)))


@both_sides
@pytest.mark.parametrize("fault", first(1, [carries, reads]))
def test_a_fault_is_an_error_if_capture_is_required(side, fault):  # noqa: F811
    """The step in which it is found is done once, as an eager step is."""
    captured = _faulty(fault, REQUIRED, side)
    with pytest.raises(CaptureError, match=re.escape(_line_of(fault))):
        captured.run(range(10))
    steps = len(captured.observed) + 1
    assert steps >= 4
    expected = _faulty(fault, None, side).run(range(steps))
    del expected.observed[-1]  # the error came in place of it
    with pytest.raises(CaptureError, match=re.escape(_line_of(fault))):  # again, and nothing is done
        captured.run([steps])
    assert_same(captured, expected)


@both_sides
def test_a_graph_that_is_not_the_eager_step(side):  # noqa: F811
    """What no note shows is seen by comparing; the step in which it is seen is the eager one."""
    calls = []

    def lossfun(model, x, t):
        calls.append(None)
        return model(x * (2.0 if len(calls) == 5 else 1.0), t)  # three eager calls, another one, and the captured one

    captured = Run({}, lossfun=lossfun, side=side).run(range(4))
    assert re.match(r"the result is [\d.]+ in the graph, and [\d.]+ in an eager step", captured.step.why_not)
    assert_same(captured, eager(4, side=side))


@pytest.mark.slow
@both_sides
def test_an_error_in_the_users_code_goes_on(side):  # noqa: F811
    """Also one in a call in which the step is captured; the next calls are as if nothing had been."""

    class Mine(Exception):
        pass

    def lossfun(model, x, t):
        loss = model(x, t)
        if model.fails:
            raise Mine
        return loss

    captured, expected = (Run(capture, lossfun=lossfun, side=side) for capture in (REQUIRED, None))
    for run in (captured, expected):
        for number in range(9):
            run.model.fails = True
            if number in (0, 2, 3, 4):
                with pytest.raises(Mine):
                    run.run([number])
            run.model.fails = False
            run.run([number])
    assert captured.step.why_not is None
    assert captured.step.replays == 9 - FIRST_REPLAY
    assert_same(captured, expected)


# --- memory, streams, waiting


def _peak(side, capture, size):  # noqa: F811
    """Returns the bytes that a run needs at most beside its weights, and those of weights, masters and momentum."""
    run = Run(capture, side=side)
    gc.collect()
    with side.graphs.on_stream(), side.peak() as peak:
        for number in range(8):
            run.run([number], size)
            run.observed.clear()
    assert capture is None or run.step.replays == 3
    assert capture is None or side.graphs.pool_bytes > 0
    return peak.bytes, sum(param.size for param in run.model.params()) * (2 + 4 + 4)


@pytest.mark.slow
@both_sides
def test_memory(side):  # noqa: F811
    """A captured run needs what an eager one does, and copies of the state while it compares; all of it goes back."""
    before = side.graphs.pool_bytes
    size = 256 if side.is_gpu else 96
    # After the first one cuDNN has its workspace.
    _, (eager, state), (captured, _) = (_peak(side, capture, size) for capture in (REQUIRED, None, REQUIRED))
    # Of a graph its whole pool counts, of which CuPy leaves some unused: 16 % on an H100.
    assert captured <= (1.25 if side.is_gpu else 1.1) * eager + 3 * state
    gc.collect()
    side.graphs.release()
    assert side.graphs.pool_bytes <= before


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["default", "blocking", "non-blocking"])
def test_streams_of_the_caller(gpu, kind):  # noqa: F811
    """Steps come after what the caller's stream was asked before them, and before what it is asked later."""
    import cupy

    expected = eager(10, side=gpu)
    stream = cupy.cuda.Stream(null=kind == "default", non_blocking=kind == "non-blocking")
    with stream:
        captured = Run(REQUIRED, side=gpu).run(range(FIRST_REPLAY))
        batches = {number: [gpu.send(array) for array in batch(number)] for number in range(FIRST_REPLAY, 10)}

        def run(steps):
            for number in steps:
                arrays = list(map(cupy.zeros_like, batches[number]))
                for array, source in zip(arrays, batches[number], strict=True):
                    array[...] = source
                captured.set_rate(number)
                captured.once(*arrays)
                for array in arrays:
                    array.fill(0)

        run([FIRST_REPLAY])  # what the driver loads at the first launch of a kernel is there
        with gpu.held():
            run(range(FIRST_REPLAY + 1, 10))
        assert_same(captured, expected)
    assert captured.step.replays == 10 - FIRST_REPLAY


@pytest.mark.gpu
def test_nothing_waits_for_the_device(gpu):  # noqa: F811
    """Three steps in a row while the device does nothing, then a read."""
    captured = Run(REQUIRED, side=gpu).run(range(FIRST_REPLAY + 1))
    steps = FIRST_REPLAY + 1
    for _ in range(16):  # the driver may wait itself while pinned memory for batches on their way is still made
        with gpu.held() as is_held:
            with gpu.without_reads():
                captured.run(range(steps, steps + 3))
            waited = not is_held()
        steps += 3
        if not waited:
            break
    assert not waited
    assert_same(captured, eager(steps, side=gpu))
