"""Captured training beside eager training, bit for bit, on a stand-in device whose graphs run on the host."""

import sys

import pytest
from captured_runs import POISONED, Run, assert_same
from graph_array import GraphArray
from graph_on_host import GraphCuda
from kernels_on_host import kernels_folder

from mixprec import backends
from mixprec.backends.cudnn import settings as cudnn
from mixprec.graph_capture import origin

STEPS = 20
FIRST_REPLAY = 5  # after three eager steps, and two in which the graph is compared with an eager step


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    return GraphCuda(kernels_folder(tmp_path_factory))


@pytest.fixture
def cuda(device, monkeypatch):
    monkeypatch.setitem(backends._OTHERS, GraphArray, device)
    # Chainer takes this device for the host.
    monkeypatch.setattr(sys.modules["mixprec.functions.dropout"], "_primitives", lambda _: device)
    monkeypatch.setattr(origin, "_LIBRARIES", {*origin._LIBRARIES, "graph_array", "graph_on_host", "host_launch"})
    cudnn.configure(deterministic=True)
    return device


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("MomentumSGD", {}),
        ("Adam", {}),
        ("LARS", {}),
        ("LAMB", {}),
        ("MomentumSGD", {"dropout": 0.5}),
        ("MomentumSGD", {"compute": "bfloat16"}),
    ],
)
def test_twenty_steps(rule, settings, cuda):
    """With a schedule, two steps that overflow, and a loss scale that grows; no step that launches a graph reads."""
    eager = Run(None, rule, **settings).run(range(STEPS))
    captured = Run({"required": True}, rule, **settings).run(range(FIRST_REPLAY))
    assert captured.step.replays == 0
    reads = GraphArray.reads
    captured.run(range(FIRST_REPLAY, STEPS))
    assert GraphArray.reads == reads
    assert captured.step.replays == STEPS - FIRST_REPLAY
    assert captured.step.why_not is None
    assert eager.optimizer.skipped == len(POISONED)
    assert_same(captured, eager)
