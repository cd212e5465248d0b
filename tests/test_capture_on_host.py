"""Captured training beside eager training, bit for bit, on a stand-in device whose graphs run on the host."""

import inspect
import logging
import re
import sys

import chainer
import chainer.functions as F
import fake_cudnn
import graph_array
import numpy as np
import pytest
from captured_runs import POISONED, Run, assert_same, batch, eager
from chainer import serializers
from graph_array import GraphArray
from graph_on_host import MODULES, GraphCuda
from kernels_on_host import kernels_folder

import mixprec
from mixprec import backends, functions
from mixprec.backends.cudnn import settings as cudnn
from mixprec.graph_capture import CaptureError, capture_evaluation, origin

STEPS = 20
FIRST_REPLAY = 5  # after three eager steps, and two in which the graph is compared with an eager step
REQUIRED = {"required": True}


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    return GraphCuda(kernels_folder(tmp_path_factory))


@pytest.fixture
def cuda(device, monkeypatch):
    monkeypatch.setitem(backends._OTHERS, GraphArray, device)
    # Chainer takes this device for the host.
    monkeypatch.setattr(sys.modules["mixprec.functions.dropout"], "_primitives", lambda _: device)
    monkeypatch.setattr(origin, "_LIBRARIES", origin._LIBRARIES | MODULES)
    cudnn.configure(deterministic=True)
    return device


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("MomentumSGD", {}),
        ("Adam", {"dropout": 0.5}),
        ("LARS", {}),
        ("LAMB", {"compute": "bfloat16"}),
    ],
)
def test_twenty_steps(rule, settings, cuda):
    """With a schedule, two steps that overflow, and a loss scale that grows; no step that launches a graph reads."""
    captured = Run(REQUIRED, rule=rule, **settings).run(range(FIRST_REPLAY))
    assert captured.step.replays == 0
    reads = GraphArray.reads
    captured.run(range(FIRST_REPLAY, STEPS))
    assert GraphArray.reads == reads
    assert captured.step.replays == STEPS - FIRST_REPLAY
    assert captured.step.why_not is None
    assert captured.optimizer.skipped == len(POISONED)
    assert_same(captured, eager(STEPS, rule=rule, **settings))


def evaluation_of(run):
    """The model's own evaluation, not captured."""

    def evaluate(*arguments):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return run.model(*arguments)

    return evaluate


def arrays_of(run):
    """Every array that a step moves but for the loss scale and its counters."""
    found = run.results()
    others = ("step ", "gradient", "skipped", "loss_scale", "mixprec")
    return {name: value for name, value in found.items() if not name.startswith(others[:3]) and others[3] not in name}


# --- a step


def test_an_overflow_in_a_graph(cuda):
    """Promise 2 of docs/numerics.md: nothing moves but the loss scale, which is halved, and its counters."""
    run = Run(REQUIRED).run(range(min(POISONED)))
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


@pytest.mark.parametrize("first", [0, 3, 4])
def test_the_first_steps_overflow(first, cuda):
    """Also that in which the graph is compared: it is compared again with one that moves something."""

    def run(capture):
        run = Run(capture)
        for number in range(9):
            x, t = batch(number)
            if number == first:
                x[...] = np.inf
            send = graph_array.array if capture is None else np.copy
            run.once(send(x), send(t))
        return run

    captured = run(REQUIRED)
    assert captured.optimizer.skipped == 1
    assert captured.step.replays >= 2
    assert_same(captured, run(None))


def test_only_what_changes_is_uploaded(cuda):
    """Nothing but the batch; and the part of the table with the learning rate if that is another one."""
    run = Run(REQUIRED)
    run.optimizer.lr = 0.01
    uploads = cuda.launcher.uploads
    for number in range(FIRST_REPLAY + 1):
        run.once(*batch(number))
    uploads.clear()
    for number in range(3):
        run.once(*batch(number))
    assert uploads == []
    for lr in (0.02, 0.02, 0.03):
        run.optimizer.lr = lr
        run.once(*batch(0))
    assert len(uploads) == 2
    assert run.step.replays == 7


def test_a_graph_launches_what_an_eager_step_does(cuda):
    """Nothing that was done to find out whether it can be captured has changed the model, such as what is fused."""
    found = []
    for capture in (None, REQUIRED):
        run = Run(capture).run(range(7))
        fake_cudnn.executed.clear()
        cuda.launcher.launches.clear()
        run.run([7])
        found.append((list(cuda.launcher.launches), list(fake_cudnn.executed)))
    assert found[0] == found[1]


@pytest.mark.parametrize("send", [np.copy, graph_array.array, chainer.Variable], ids=["host", "device", "variable"])
def test_arguments_of_the_host_and_the_device(send, cuda):
    captured = Run(REQUIRED).run(range(8), send=lambda array: send(np.copy(array)))
    assert captured.step.replays == 3
    assert_same(captured, eager(8))


def test_results_are_new_and_have_no_graph(cuda):
    """What somebody keeps of a step is not overwritten by the next; nobody can go back from the loss."""
    run = Run(REQUIRED).run(range(8))
    addresses = [{chainer.as_array(value).ctypes.data for value in observed.values()} for observed in run.observed]
    assert len(set().union(*addresses)) == sum(map(len, addresses))
    for observed in run.observed:
        assert isinstance(observed["returned"], chainer.Variable)
        assert observed["returned"].shape == ()
        assert observed["returned"].creator_node is None
        assert observed["returned"].array == observed["main/loss"].array


def test_a_loss_function_of_the_users(cuda):
    def lossfun(model, x, t):
        y = model.predictor(x)
        loss = functions.softmax_cross_entropy(y, t, smoothing=0.1) + 2.0**-6 * F.sum(F.square(y))
        chainer.report({"loss": loss, "constant": 3.0}, model)
        return loss

    captured, expected = (Run(capture, lossfun=lossfun).run(range(9)) for capture in (REQUIRED, None))
    assert captured.step.replays == 4
    for observed in (*captured.observed, *expected.observed):
        assert observed.pop("main/constant") == 3.0
    assert_same(captured, expected)


@pytest.mark.parametrize("loss_scale", [None, 64.0])
def test_other_loss_scales_and_zeros(loss_scale, cuda):
    captured, expected = (
        Run(capture, loss_scale=loss_scale, zero_gradients=True).run(range(11)) for capture in (REQUIRED, None)
    )
    assert captured.step.replays == 6
    assert captured.optimizer.skipped == 1
    assert_same(captured, expected)


# --- between steps


def test_evaluation_between(cuda):
    """Eager or captured; training goes on in its graph."""
    images = batch(100, 6)
    found = {}
    for capture in (None, REQUIRED):
        run = Run(capture, dropout=0.5)
        own = evaluation_of(run)
        evaluate = own if capture is None else capture_evaluation(run.model, required=True)
        found[capture is None] = run, []
        for number in range(12):
            run.run([number])
            for function in (own, evaluate):
                found[capture is None][1].append(run.evaluate(function, *map(graph_array.array, images)))
    (_, expected), (captured, values) = found[True], found[False]
    assert captured.step.replays == 12 - FIRST_REPLAY
    assert evaluate.replays == 12 - FIRST_REPLAY
    for one, other in zip(values, expected, strict=True):
        assert {name: value.tobytes() for name, value in one.items()} == {
            name: value.tobytes() for name, value in other.items()
        }
    assert_same(captured, eager(12, dropout=0.5))


@pytest.mark.parametrize(
    ("wishes", "replays"),
    # Sixteen steps, every second one with a batch of 2, of which the fifth overflows.
    [({}, 3 + 2), ({"other_shapes": "eager"}, 3), ({"graphs": 1}, 1)],
    ids=["capture", "eager", "one graph"],
)
def test_another_batch_shape(wishes, replays, cuda):
    def run(capture):
        run = Run(capture)
        for number in range(16):
            run.run([number], size=2 if number % 2 else 4, send=graph_array.array)
        return run

    captured = run({**REQUIRED, **wishes})
    assert captured.step.replays == replays
    assert_same(captured, run(None))


@pytest.mark.xfail(strict=True, reason="steps that are eager for want of a graph take arrays of the device only")
def test_a_smaller_last_batch_of_the_host(cuda):
    """Where it has no graph, it still has to come to the device."""

    def run(capture):
        run = Run(capture)
        for number in range(9):
            run.run([number], size=2 if number in (2, 7) else 4)
        return run

    captured = run({**REQUIRED, "other_shapes": "eager"})
    assert captured.step.replays == 2
    assert_same(captured, run(None))


def _save(run, tmp_path):
    serializers.save_npz(tmp_path / "model.npz", run.model)
    serializers.save_npz(tmp_path / "optimizer.npz", run.optimizer)


def _load(run, tmp_path):
    serializers.load_npz(tmp_path / "model.npz", run.model)
    serializers.load_npz(tmp_path / "optimizer.npz", run.optimizer)
    graph_array.send_states(run.model)


@pytest.mark.parametrize(("resumed", "middle"), [("captured", 2), ("captured", 4), ("captured", 8), ("eager", 8)])
def test_snapshot_in_the_middle_and_resume(resumed, middle, cuda, tmp_path):
    """Both the run that was saved and the one that goes on from the file are the run that nobody interrupted."""
    expected = eager(16, rule="Adam", dropout=0.5)
    saved = Run(REQUIRED, rule="Adam", dropout=0.5).run(range(middle))
    _save(saved, tmp_path)
    saved.run(range(middle, 16))
    assert saved.step.replays == 16 - FIRST_REPLAY
    assert_same(saved, expected)
    other = Run(REQUIRED if resumed == "captured" else None, rule="Adam", dropout=0.5)
    _load(other, tmp_path)
    other.observed = saved.observed[:middle]
    other.run(range(middle, 16))
    assert_same(other, expected)
    assert resumed == "eager" or other.step.replays == 16 - middle - FIRST_REPLAY


def test_a_snapshot_is_loaded_into_a_run(cuda, tmp_path):
    """Which goes on from there: the graph reads and writes what was loaded, or there is another one."""

    def run(capture):
        run = Run(capture).run(range(6))
        _save(run, tmp_path)
        run.run(range(6, 9))
        _load(run, tmp_path)
        return run.run(range(6, 16))

    captured = run(REQUIRED)
    assert captured.step.replays >= 6
    assert_same(captured, run(None))


def test_weights_are_loaded_into_a_run(cuda, tmp_path):
    """``load_npz`` of a model, in plain Chainer's format; and a write to a parameter."""

    def run(capture):
        run = Run(capture)
        serializers.save_npz(tmp_path / "first.npz", run.model)
        run.run(range(8))
        serializers.load_npz(tmp_path / "first.npz", run.model)
        run.run(range(8, 12))
        run.model.predictor.fc.W.array[0, 0] = 0.5
        return run.run(range(12, 16))

    captured = run(REQUIRED)
    assert captured.step.replays >= 8
    assert_same(captured, run(None))


def test_parameters_are_frozen_and_thawed(cuda):
    def run(capture):
        run = Run(capture).run(range(7))
        run.model.predictor.conv1.disable_update()
        run.run(range(7, 14))
        run.model.predictor.conv1.enable_update()
        return run.run(range(14, 21))

    captured = run(REQUIRED)
    assert captured.step.replays >= 6
    assert captured.step.why_not is None
    assert_same(captured, run(None))


def test_a_hook_is_added_and_a_rule_changes(cuda):
    def run(capture):
        run = Run(capture).run(range(7))
        run.optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.1))
        run.run(range(7, 13))
        run.model.predictor.fc.W.update_rule.hyperparam.momentum = 0.5
        return run.run(range(13, 16))

    captured = run(REQUIRED)
    assert captured.step.replays >= 3
    assert captured.step.why_not is None
    assert_same(captured, run(None))


def test_two_runs_on_the_same_device(cuda):
    """Two models with graphs take turns: they share the memory of graphs, and nothing else."""
    runs = {rule: Run(REQUIRED, rule=rule) for rule in ("MomentumSGD", "Adam")}
    for number in range(9):
        for run in runs.values():
            run.run([number])
    for rule, run in runs.items():
        assert run.step.replays == 4
        assert_same(run, eager(9, rule=rule))


# --- what cannot be captured: loss functions, with the line that does what they are called after


def reads(model, x, t):
    loss = model(x, t)
    if float(loss.array) < 1e9:  # fault
        loss = loss * 1.0
    return loss


def uploads(model, x, t):
    model.seen[...] = np.ones(3, np.float32)  # fault
    return model(x, t)


def multiplies_by_a_number(model, x, t):
    model.count += 1
    return model(x, t) * (1 + model.count / 64)  # fault


def carries(model, x, t):
    loss = model(x, t)
    total = loss if model.carried is None else loss + 0.25 * model.carried  # fault
    model.carried = chainer.Variable(loss.array.copy(), requires_grad=False)
    return total


def does_other_things(model, x, t):
    model.count += 1
    loss = model(x, t)
    return F.sum(loss) if model.count % 2 else F.sum(F.square(loss))  # fault


FAULTS = {
    reads: "the host waits for the device",
    uploads: "something of the host is copied to the device",
    multiplies_by_a_number: "value of the function MulConstant is",
    carries: "memory that is kept from one step to the next",
    does_other_things: "the step asks for the function S",
}


def faulty(fault, capture):
    run = Run(capture, lossfun=fault)
    run.model.count, run.model.carried, run.model.seen = 0, None, graph_array.new((3,), np.float32)
    return run


def line_of(fault):
    lines, first = inspect.getsourcelines(fault)
    (number,) = (number for number, line in enumerate(lines) if "# fault" in line)
    return f"{__file__}:{first + number} "


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_line_and_the_run_goes_on(fault, cuda, caplog):
    with caplog.at_level(logging.WARNING, "mixprec"):
        captured = faulty(fault, {}).run(range(12), send=graph_array.array)
    (record,) = caplog.records
    assert captured.step.replays == 0
    assert captured.step.why_not in record.getMessage()
    assert captured.step.why_not in captured.step.report()
    assert captured.step.why_not.startswith(line_of(fault))
    assert FAULTS[fault] in captured.step.why_not
    assert_same(captured, faulty(fault, None).run(range(12)))


@pytest.mark.xfail(strict=True, reason="steps that are eager for want of a graph take arrays of the device only")
def test_a_run_that_goes_on_eagerly_takes_arrays_of_the_host(cuda):
    captured = faulty(reads, {}).run(range(8))
    assert captured.step.why_not is not None
    assert_same(captured, faulty(reads, None).run(range(8)))


@pytest.mark.xfail(strict=True, reason="the step in which the fault is found is done before the error")
@pytest.mark.parametrize("fault", [reads, carries])
def test_a_fault_is_an_error_if_capture_is_required(fault, cuda):
    """Nothing has changed then since the call before."""
    run = faulty(fault, REQUIRED)
    states = []

    def until_it_fails():
        for number in range(10):
            states.append(arrays_of(run))
            run.run([number])

    with pytest.raises(CaptureError, match=re.escape(line_of(fault))):
        until_it_fails()
    assert len(states) >= 3
    after = arrays_of(run)
    assert {key for key, value in states[-1].items() if after[key].tobytes() != value.tobytes()} == set()


def test_an_error_in_the_users_code_goes_on(cuda):
    """Also one in a call in which the step is captured; the next calls are as if nothing had been."""

    class Mine(Exception):
        pass

    def lossfun(model, x, t):
        loss = model(x, t)
        if model.fails:
            raise Mine
        return loss

    captured, expected = Run(REQUIRED, lossfun=lossfun), Run(None, lossfun=lossfun)
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


def test_required_without_a_device():
    np.random.seed(0)
    model = chainer.links.Linear(3, 2)
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
    with pytest.raises(CaptureError, match="needs a CUDA device"):
        mixprec.capture(optimizer, lambda x: F.sum(model(x)), required=True)(np.ones((1, 3), np.float32))
    assert optimizer.t == 0
