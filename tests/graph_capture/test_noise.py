"""Capture of steps whose gradients differ from run to run, as with engines that add in another order each time."""

import numpy as np
import pytest

import mixprec
from mixprec.backends.cudnn import settings as cudnn
from mixprec.graph_capture import CaptureError, doubts, verification
from tests.cases import first
from tests.graph_capture.captured_runs import REQUIRED, Run, batch
from tests.stand_ins import fake_cudnn, graph_array
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host  # noqa: F401  (fixtures)
from tests.stand_ins.graph_on_host import HostGraph

CALLS = 40


def _disturb(monkeypatch, change):
    """Lets ``change`` alter what cuDNN's stand-in gives as gradients of inputs of convolutions and linear layers."""
    node = fake_cudnn.NODES["conv_dgrad"]

    def compute(*arguments):
        return tuple(change(np.array(result)) for result in node.compute(*arguments))

    monkeypatch.setitem(fake_cudnn.NODES, "conv_dgrad", node._replace(compute=compute))


@pytest.fixture
def noise(host, monkeypatch):  # noqa: F811
    """Gradients as uncertain as those of a deep network at its first steps."""
    cudnn.configure(deterministic=False)
    random = np.random.default_rng(0)
    _disturb(monkeypatch, lambda gradient: gradient * random.normal(1, 0.7, gradient.shape))


def test_a_step_with_uncertain_gradients_is_captured(noise):
    run = Run(REQUIRED).run(range(12))
    assert run.step.why_not is None
    assert run.step.replays >= 4


@pytest.mark.slow
def test_a_late_capture_of_a_batch_that_is_learnt_by_heart(host, monkeypatch):  # noqa: F811
    """Weights and statistics stand still then, and what varies does not."""
    cudnn.configure(deterministic=False)
    random, node = np.random.default_rng(0), fake_cudnn.NODES["conv_fprop"]

    def compute(*arguments):
        first, *others = map(np.array, node.compute(*arguments))
        return (first * (1 + 2.0**-10 * random.standard_normal(first.shape)), *others)

    monkeypatch.setitem(fake_cudnn.NODES, "conv_fprop", node._replace(compute=compute))
    run, same = Run({**REQUIRED, "warmup": 60}), batch(0)
    for _ in range(70):
        run.once(*map(np.copy, same))
    assert float(run.observed[50]["main/loss"].array) < 0.1 * float(run.observed[0]["main/loss"].array)
    assert run.step.why_not is None
    assert run.step.replays >= 4


@pytest.mark.slow
def test_what_a_graph_is_off_by_is_compared_with_how_much_runs_vary(noise, monkeypatch):
    monkeypatch.setattr(verification, "_APART", 0)
    with pytest.raises(CaptureError, match="differs between the graph and an eager step"):
        Run(REQUIRED).run(range(12))


def _overflow_at_random(gradient, random, noise):
    """In one step of four, in the last layer's gradient."""
    if gradient.shape[2:] == (1, 1) and not random.integers(4):
        gradient[...] = np.inf
    return gradient * random.normal(1, noise, gradient.shape)


@pytest.mark.parametrize(("seed", "noise"), first(0, [(1, 0), (0, 0.7)], 1))
def test_steps_that_overflow_in_one_of_the_two_only_are_no_comparison(host, monkeypatch, seed, noise):  # noqa: F811
    cudnn.configure(deterministic=False)
    random = np.random.default_rng(seed)
    _disturb(monkeypatch, lambda gradient: _overflow_at_random(gradient, random, noise))
    scale = mixprec.DynamicLossScale(init=2.0**7, floor=2.0**7, patience=1000)
    run = Run(REQUIRED, loss_scale=scale)
    applied = 0
    for number in range(CALLS):
        run.run([number])
        applied += not run.optimizer.last_step_skipped
    assert run.step.why_not is None
    assert run.step.replays >= 5
    assert run.optimizer.t == applied
    assert run.optimizer.skipped == CALLS - applied > 5


@pytest.mark.slow
def test_an_array_that_each_step_changes_in_place_is_found(host, monkeypatch):  # noqa: F811
    """One that mixprec does not know, so that it does not come back between the runs that are compared."""
    cudnn.configure(deterministic=False)
    monkeypatch.setattr(doubts, "CALLS", 3)  # of 6: it takes time
    hidden = graph_array.array(np.ones((), np.float32))

    def lossfun(model, x, t):
        hidden[...] += 0.5
        return model(x, t) * hidden

    run = Run(REQUIRED, lossfun=lossfun)
    with pytest.raises(CaptureError, match="in the graph, and"):
        run.run(range(30))
    assert len(run.observed) > doubts.CALLS


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [2, 6])
def test_a_value_that_is_another_one_by_chance_is_compared_again(host, monkeypatch, wrong):  # noqa: F811
    """As the accuracy of a small batch is, if two classes are equally likely."""
    cudnn.configure(deterministic=False)
    launch, launches = HostGraph.launch, []

    def noted(self):
        launches.append(self)
        return launch(self)

    difference = verification.Verification.differences

    def differences(*parts):
        return difference(*parts) | ({"accuracy": "is another one"} if len(launches) == wrong else {})

    monkeypatch.setattr(HostGraph, "launch", noted)
    monkeypatch.setattr(verification.Verification, "differences", differences)
    run = Run(REQUIRED).run(range(12))
    assert run.step.why_not is None
    assert run.step.replays >= 12 - 3 - 4


@pytest.mark.slow
def test_a_graph_that_always_overflows_where_an_eager_step_does_not_is_a_difference(host, monkeypatch):  # noqa: F811
    cudnn.configure(deterministic=False)
    monkeypatch.setattr(doubts, "CALLS", 3)
    launch, launched = HostGraph.launch, []

    def noted(self):
        launched.append(self)
        try:
            return launch(self)
        finally:
            launched.append(None)

    monkeypatch.setattr(HostGraph, "launch", noted)

    def change(gradient):
        return gradient * (np.inf if launched and launched[-1] is not None else 1)

    _disturb(monkeypatch, change)
    run = Run(REQUIRED)
    with pytest.raises(CaptureError, match="differs between the graph and an eager step"):
        run.run(range(30))
    assert len(launched) / 2 >= 2 * doubts.CALLS
    assert run.optimizer.skipped <= 2  # those of the batches


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_loss_function_that_reads_the_number_of_steps(host, deterministic):  # noqa: F811
    """Steps that are turned back are not counted, whoever asks."""
    cudnn.configure(deterministic=deterministic)
    counts = []

    def lossfun(model, x, t):
        counts.append(run.optimizer.t)
        return model(x, t)

    run = Run({}, lossfun=lossfun)
    for number in range(12):
        run.run([number])
        assert run.optimizer.t + run.optimizer.skipped == number + 1


@pytest.mark.gpu
def test_uncertain_engines_are_captured(gpu):  # noqa: F811
    """With all engines of cuDNN, those that add in another order each time among them."""
    cudnn.configure(deterministic=False)
    run = Run(REQUIRED, side=gpu).run(range(12))
    assert run.step.why_not is None
    assert run.step.replays >= 4
