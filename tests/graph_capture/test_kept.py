"""What captured steps keep, and leave in the model, on a stand-in device whose graphs run on the host."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec
from mixprec.graph_capture.cuda_graphs import graphs_of
from tests.graph_capture.captured_runs import Run, assert_same, batch
from tests.stand_ins import graph_array
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)


@pytest.fixture
def cuda(host, device):  # noqa: F811
    return device


def _loss(run):
    return graph_array.receive(run.model.loss.array)


def test_variables_of_the_model_are_those_of_the_step_that_was_run(cuda):
    """Also if another graph was captured since; training loops read ``model.loss`` and ``model.accuracy``."""
    captured = Run({"required": True})
    for number in range(20):
        captured.run([number], size=(4, 2)[number % 2])
        returned = captured.observed[-1]["returned"]
        np.testing.assert_array_equal(_loss(captured), graph_array.receive(returned.array))
    assert captured.step.replays == 9


def test_variables_of_the_model_after_a_capture_that_failed(cuda):
    def reads_late(model, x, t):
        loss = model(x, t)
        float(loss.array)
        return loss

    captured = Run({}, lossfun=reads_late).run(range(4))
    assert "the host" in captured.step.why_not
    assert np.isfinite(_loss(captured))
    np.testing.assert_array_equal(_loss(captured), graph_array.receive(captured.observed[-1]["returned"].array))


def _with_a_part_in_between(capture):
    run = Run(capture).run(range(8))
    x, t = map(graph_array.array, batch(8))
    with graphs_of(x).on_stream():
        run.model.predictor.bn1(run.model.predictor.conv1(x))  # its statistics are saved by themselves, then the others
        run.optimizer.update(run.model, x, t)
        spoiled = [graph_array.array(np.full(4096, np.nan, np.float32)) for _ in range(64)]
    run.run(range(9, 12))  # the first one overflows
    del spoiled
    return run


@pytest.mark.slow
def test_copies_of_statistics_stay_as_long_as_a_graph(cuda):
    captured = _with_a_part_in_between({"required": True})
    assert captured.step.replays == 6
    assert_same(captured, _with_a_part_in_between(None))


def _with_other_powers(capture):
    run = Run(capture, "MSVAG")
    for number in range(10):
        run.optimizer.beta = 0.9 - 0.01 * number
        run.run([number])
    return run


@pytest.mark.slow
def test_a_power_of_another_number_in_each_step(cuda):
    """What was applied is settled before; it must not come back with the state that a comparison starts from."""
    captured = _with_other_powers({"required": True})
    assert captured.step.replays == 5
    assert_same(captured, _with_other_powers(None))


def _with_a_state(step_of):
    """Weights of a recurrent network whose gradients go through all steps."""
    np.random.seed(0)
    model = L.Linear(3, 3)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.1)).setup(model)
    states = [0.0]

    def lossfun(x):
        states.append(model(x) + states[-1])
        return F.sum(F.square(states[-1]))

    step = step_of(optimizer, lossfun)
    for number in range(4):
        step(np.full((2, 3), 0.1 * number, np.float32))
    return model.W.array


def test_eager_steps_leave_the_graph_of_their_loss():
    expected = _with_a_state(lambda optimizer, lossfun: lambda x: optimizer.update(lossfun, x))
    np.testing.assert_array_equal(_with_a_state(mixprec.capture), expected)
