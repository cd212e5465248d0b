"""Gradients of two streams, packed and summed on a third one in a graph, whenever each of them does its work."""

import numpy as np
import pytest

from mixprec.backends import aside
from mixprec.distributed.buckets import ALIGNED, layout
from mixprec.distributed.device_arena import DeviceArena
from mixprec.distributed.nccl_transport import NcclTransport
from tests.stand_ins import graph_array, graph_work, nccl_on_host
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.nccl_on_host import Communicator
from tests.stand_ins.twin_transport import Twins

NAMES = "abcdef"
VALUES = np.arange(1, 257, dtype=np.float16)


def _launched(host, device, dtype_of_sum=np.float16):  # noqa: F811
    """Returns the means that two launches of a graph have left; every other gradient is one of the second stream."""
    half = np.dtype(np.float16)
    plan = layout([(name, "own", VALUES.size) for name in NAMES], {"own": 2}, 2 * VALUES.size, ALIGNED)
    transport = NcclTransport(Twins(), Communicator().nccl)
    beside = host.graphs.aside
    with host.graphs.on_stream(), aside.using(beside):
        x = graph_array.array(VALUES)
        arena = DeviceArena(plan.sizes["own"], half, np.dtype(dtype_of_sum), transport, device.launcher)
        for name in NAMES:
            arena.place(name, plan.slots[name], x)

        def step():
            works = []
            for place, bucket in enumerate(plan.buckets):
                make = lambda place=place: x * np.float16(place + 1)  # noqa: E731
                arena.put(bucket.names[0], beside.run(make, [x]) if place % 2 else make())
                works.append(arena.start(bucket))
                _ = x + np.float16(1)  # would get the memory of the gradient
            beside.join()
            for work, bucket in zip(works, plan.buckets, strict=True):
                work.join()
                arena.end(bucket)

        graph, _ = host.graphs.capture(step)
        found = []
        for _ in range(2):
            arena.gradients.fill(np.nan)
            graph.launch()
            found.append(graph_array.receive(arena.gradients).reshape(len(NAMES), -1))
    return found


def _expected():
    """The mean of two that are the same, of which the arena's order is that of the buckets."""
    return [VALUES * np.float16(place + 1) for place in range(len(NAMES))]


@pytest.mark.parametrize("dtype_of_sum", [np.float16, np.float32])
def test_means(host, device, dtype_of_sum):  # noqa: F811
    for found in _launched(host, device, dtype_of_sum):
        np.testing.assert_array_equal(found, _expected())


def _wait_for_nothing(stream, event, wait=graph_work.wait):
    """Only the third stream does not wait for the first, but at first."""
    if stream != graph_work.THIRD or event == 1:
        wait(stream, event)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (nccl_on_host.aside, "last", lambda: None),
        (NcclTransport, "start", lambda self, array, fill, held, start=NcclTransport.start: start(self, array, fill)),
        (graph_work, "wait", _wait_for_nothing),
    ],
    ids=["second stream", "not held", "no fork"],
)
def test_a_fault_is_found(host, device, monkeypatch, owner, name, fault):  # noqa: F811
    monkeypatch.setattr(owner, name, fault)
    assert not all(np.array_equal(found, _expected()) for found in _launched(host, device))


def test_a_sum_that_is_not_joined_is_found(host, device, monkeypatch):  # noqa: F811
    monkeypatch.setattr(nccl_on_host.HostNccl, "join", lambda self: None)
    with pytest.raises(RuntimeError, match="Unjoined"):
        _launched(host, device)
