"""Captured training on the stand-in device: what :mod:`tests.graph_capture.test_gpu` does not ask of a GPU as well."""

import copy

import chainer
import numpy as np
import pytest
from chainer import serializers

import mixprec
from tests.cases import first
from tests.graph_capture.captured_runs import FIRST_REPLAY, REQUIRED, Run, assert_same, batch
from tests.stand_ins import fake_cudnn, graph_array
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)

pytestmark = pytest.mark.usefixtures("host")

# --- a step


@pytest.mark.parametrize("overflow", first(1, [3, 0, 4]))
def test_the_first_steps_overflow(overflow):
    """Also that in which the graph is compared: it is compared again with one that moves something."""

    def run(capture):
        run = Run(capture)
        for number in range(9):
            x, t = batch(number)
            if number == overflow:
                x[...] = np.inf
            send = graph_array.array if capture is None else np.copy
            run.once(send(x), send(t))
        return run

    captured = run(REQUIRED)
    assert captured.optimizer.skipped == 1
    assert captured.step.replays >= 2
    assert_same(captured, run(None))


def _searching(capture):
    """Five steps with gradients for which 2^16 is too much."""
    scale = mixprec.DynamicLossScale(search=True)
    run = Run(capture, loss_scale=scale, lossfun=lambda model, x, t: model(x, t) * np.float32(2000))
    for number in range(FIRST_REPLAY + 2):
        run.optimizer.lr = 1e-9
        run.once(*(map(graph_array.array, batch(number)) if capture is None else batch(number)))
    return run


def test_the_first_eager_call_searches_for_a_loss_scale(caplog):
    """No step is lost, and the graph is there as early as without a search."""
    captured = _searching(REQUIRED)
    assert captured.optimizer.skipped == 0
    assert captured.optimizer.loss_scale < 2.0**16
    assert captured.step.replays == 2
    assert "not searched" not in caplog.text
    assert_same(captured, _searching(None))


@pytest.mark.slow
def test_calls_that_are_watched_or_captured_do_not_search(announced):
    captured = _searching({**REQUIRED, "warmup": 2})
    assert captured.optimizer.skipped > 0
    assert announced.text.count("is not searched (a captured step has one backward pass)") == 1


def test_only_what_changes_is_uploaded(device):  # noqa: F811
    """Nothing but the batch; and the part of the table with the learning rate if that is another one."""
    run = Run(REQUIRED)
    run.optimizer.lr = 0.01
    uploads = device.launcher.uploads
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


def test_a_graph_launches_what_an_eager_step_does(device):  # noqa: F811
    """Nothing that was done to find out whether it can be captured has changed the model, such as what is fused."""
    found = []
    for capture in (None, REQUIRED):
        run = Run(capture).run(range(7))
        fake_cudnn.executed.clear()
        device.launcher.launches.clear()
        run.run([7])
        found.append((list(device.launcher.launches), list(fake_cudnn.executed)))
    assert found[0] == found[1]


def test_results_are_new_and_have_no_graph():
    """What somebody keeps of a step is not overwritten by the next; nobody can go back from the loss."""
    run = Run(REQUIRED).run(range(8))
    addresses = [{chainer.as_array(value).ctypes.data for value in observed.values()} for observed in run.observed]
    assert len(set().union(*addresses)) == sum(map(len, addresses))
    for observed in run.observed:
        assert isinstance(observed["returned"], chainer.Variable)
        assert observed["returned"].shape == ()
        assert observed["returned"].creator_node is None
        assert observed["returned"].array == observed["main/loss"].array


@pytest.mark.slow
@pytest.mark.parametrize("loss_scale", [64.0, None])
def test_other_loss_scales_and_zeros(loss_scale):
    captured, expected = (
        Run(capture, loss_scale=loss_scale, zero_gradients=True).run(range(11)) for capture in (REQUIRED, None)
    )
    assert captured.step.replays == 6
    assert captured.optimizer.skipped == 1
    assert_same(captured, expected)


# --- between steps


@pytest.mark.parametrize("loss_scale", first(1, [mixprec.StaticLossScale(64, patience=4), mixprec.NoLossScale(4)]))
def test_launches_count_overflows_in_a_row_with_a_constant_scale(loss_scale):
    """A graph advances the count in its place, and training ends as in eager steps."""
    run, bad = Run(REQUIRED, loss_scale=copy.deepcopy(loss_scale)).run(range(FIRST_REPLAY + 2)), 9
    (count,) = run.optimizer._scaler.arrays
    run.run([bad, bad, 10, bad, bad, bad])
    assert run.optimizer._scaler.arrays[0] is count
    assert (run.optimizer._scaler.overflows_in_row, run.optimizer.skipped) == (3, 5)
    assert run.step.replays == 2 + 6
    with pytest.raises(mixprec.LossScaleExhausted, match=r"^4 steps in a row overflowed"):
        run.run([bad])


@pytest.mark.slow
def test_weights_are_loaded_into_a_run(tmp_path):
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


@pytest.mark.slow
def test_a_hook_is_added_and_a_rule_changes():
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
