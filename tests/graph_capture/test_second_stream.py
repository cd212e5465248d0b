"""Gradients of filters on a second stream: the same bits, whenever it does its work; and faults of it are found."""

import chainer
import chainer.functions as F
import pytest

from mixprec.backends.cudnn.workspace import Workspaces
from mixprec.backends.wgrad_stream import AHEAD, SideStream
from mixprec.graph_capture import CaptureError
from mixprec.precision import pass_scales
from tests.cases import first
from tests.graph_capture.captured_runs import REQUIRED, Network, Run, assert_same, eager
from tests.graph_nodes import nodes_behind
from tests.stand_ins import graph_on_host, graph_work
from tests.stand_ins.capture_sides import HOST, device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides

BOTH_STREAMS = {**REQUIRED, "second_stream": True}
CONVOLUTIONS = 6  # of the network
STEPS = 9  # four of them are launches that nobody compares: two for each order


@pytest.fixture
def ran_aside(monkeypatch):
    """What was run on the second stream, in a list, and how much was under way each time."""
    ran, run = [], SideStream.run

    def noted(self, function, held):
        result = run(self, function, held)
        ran.append(len(self._under_way))
        return result

    monkeypatch.setattr(SideStream, "run", noted)
    return ran


@both_sides
def test_the_same_bits(side, ran_aside):  # noqa: F811
    captured = Run(BOTH_STREAMS, side=side).run(range(STEPS))
    assert captured.step.replays == STEPS - 5
    assert len(ran_aside) % CONVOLUTIONS == 0
    assert max(ran_aside) == AHEAD
    assert_same(captured, eager(STEPS, side=side))


@pytest.mark.usefixtures("host")
def test_without_the_key_there_is_one_stream(ran_aside):
    Run(REQUIRED).run(range(STEPS))
    assert not ran_aside


@pytest.mark.usefixtures("host")
def test_in_debug_mode_there_is_one_stream(ran_aside):
    """Chainer looks at every gradient as soon as it is asked for."""
    with chainer.using_config("debug", True):
        Run({"second_stream": True}).run(range(2))
    assert not ran_aside


class Shared(Network):
    """Filters that two functions have, and filters whose norm is a part of the loss."""

    def forward(self, x):
        block = self.stages[0]
        h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, pad=1, cover_all=False)
        h = block.conv1(F.relu(block.conv1(h)))
        h = F.average(self.stages(h), axis=(2, 3))
        return self.fc(h) + 1e-3 * F.sum(F.cast(self.stages[1].conv1.W, "float32") ** 2)


def _shared(capture, side=HOST):  # noqa: F811
    return Run(capture, network=Shared, side=side).run(range(STEPS))


@both_sides
def test_gradients_that_are_added_up(side, ran_aside):  # noqa: F811
    captured = _shared(BOTH_STREAMS, side)
    assert ran_aside
    assert_same(captured, _shared(None, side))


class Forgetting(Network):
    """Filters that a function has, and another one that is repeated in a pass within the backward pass before."""

    def forward(self, x):
        first, second = self.stages
        h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, pad=1, cover_all=False)
        h = F.relu(first.conv1(h))
        h = F.forget(lambda y: F.relu(first.conv1(y)), h)
        return self.fc(F.average(second(h), axis=(2, 3)))


@pytest.mark.usefixtures("host")
def test_gradients_that_a_pass_within_the_pass_has_left(ran_aside):
    captured, expected = (Run(capture, network=Forgetting).run(range(STEPS)) for capture in (BOTH_STREAMS, REQUIRED))
    assert ran_aside
    assert_same(captured, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("host")
def test_gradients_of_several_batches():
    """Those of the second one are added to those of the first."""
    captured = Run(BOTH_STREAMS, lossfun=_of_two)
    expected = Run(REQUIRED, lossfun=_of_two)
    for run in (captured, expected):
        run.run(range(STEPS))
    assert captured.step.replays == STEPS - 5
    assert_same(captured, expected)


def _of_two(model, x, t):
    yield model(x, t) / 2
    yield model(x[::-1], t) / 2


# --- faults


def _without_holding(self, function, held, run=SideStream.run):
    return run(self, function, None)


def _fork_at_first(self):
    """Only what the first gradient reads is there for sure."""
    if graph_work.record(graph_work.FIRST):
        graph_work.wait(graph_work.SECOND, 1)


def _everything(outputs):
    nodes = nodes_behind(*(y for y, _ in outputs))
    return {(node, place) for node in nodes for place in range(len(node.inputs))}


def _one_for_all(self, stream, size, address=Workspaces.address):
    return address(self, 7, size)


FAULTS = [
    (SideStream, "join", lambda self: self.forget(), "Unjoined"),
    (SideStream, "run", _without_holding, "differs between the graph"),
    (graph_on_host._Streams, "fork", _fork_at_first, "differs between the graph"),
    (pass_scales, "sole_uses", _everything, "differs between the graph"),
    (Workspaces, "address", _one_for_all, "two streams have one workspace"),
]


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(("owner", "name", "fault", "said"), first(2, FAULTS))
def test_a_fault_is_found(monkeypatch, owner, name, fault, said):
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(CaptureError, match=said):
        _shared(BOTH_STREAMS)
