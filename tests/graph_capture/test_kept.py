"""What captured steps keep, and leave in the model, on a stand-in device whose graphs run on the host."""

import numpy as np
import pytest

from mixprec.graph_capture.cuda_graphs import graphs_of
from tests.graph_capture.captured_runs import Run, assert_same, batch
from tests.stand_ins import graph_array
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)


@pytest.fixture
def cuda(host, device):  # noqa: F811
    return device


def _loss(run):
    return graph_array.receive(run.model.loss.array)


@pytest.mark.slow
def test_variables_of_the_model_are_those_of_the_step_that_was_run(cuda):
    """Also if another graph was captured since; training loops read ``model.loss`` and ``model.accuracy``."""
    captured = Run({"required": True})
    for number in range(20):
        captured.run([number], size=(4, 2)[number % 2])
        returned = captured.observed[-1]["returned"]
        np.testing.assert_array_equal(_loss(captured), graph_array.receive(returned.array))
    assert captured.step.replays == 9


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
