"""Sums over ranks of a device, also in a CUDA graph, and how the inverses are distributed."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.distributed.nccl_transport import NcclTransport
from mixprec.kfac import sharing
from tests.cases import tries
from tests.stand_ins import graph_array
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.nccl_on_host import Communicator
from tests.stand_ins.twin_transport import Twins

SHAPES = (1, 5, 5), (3, 2, 2), (3, 4), (2,)  # of second moments and counts


# --- sums


def _arrays(seed):
    random = np.random.RandomState(seed)
    return [random.normal(size=shape).astype(np.float32) for shape in SHAPES]


def _expected(arrays):
    """Twice the lower triangles, mirrored: the other rank has the same."""
    lower = [2 * (np.tril(array) if array.ndim == 3 else array) for array in arrays]
    return [a + np.tril(a, -1).transpose(0, 2, 1) if a.ndim == 3 else a for a in lower]


def _assert_sums(found, arrays):
    for array, expected in zip(found, _expected(arrays), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("is_slow", [False, True])
def test_sums_on_numpy(is_slow):
    twins, arrays = Twins(), _arrays(0)
    twins.is_slow = is_slow
    sharing._sum(arrays, twins)
    _assert_sums(arrays, _arrays(0))
    assert twins.events == [("start", 15 + 3 * 3 + 3 * 4 + 2)]  # one message


@pytest.mark.parametrize("seed", [None, 0])
def test_sums_in_a_graph(host, seed):  # noqa: F811
    """Whenever each stream does its work; many layers, of whose addresses a table would have to be uploaded."""
    nccl = Communicator().nccl
    transport = NcclTransport(Twins(), nccl)
    with host.graphs.on_stream():
        arrays = list(map(graph_array.array, 4 * _arrays(0)))
        values = [array.copy() for array in arrays]

        def step():
            for array, value in zip(arrays, values, strict=True):
                array[...] = value
            sharing._sum(arrays, transport)
            return [array * 1 for array in arrays]  # what comes after it on the first stream

        graph, found = host.graphs.capture(step)
        host.graphs.seeds = None if seed is None else itertools.count(seed)
        try:
            for start in range(2):
                for value, new in zip(values, 4 * _arrays(start), strict=True):
                    value[...] = graph_array.array(new)
                graph.launch()
                _assert_sums(list(map(graph_array.receive, found)), 4 * _arrays(start))
        finally:
            host.graphs.seeds = None
    assert nccl.calls == [("all_reduce", 4 * 38, "float32")]
    assert nccl.events == ["fork", "all_reduce", "join"]


def test_a_sum_is_no_part_of_what_passes_are_compared_by(host):  # noqa: F811
    """A step is captured if its pass asks for what the one before did, in which there may have been no such sum."""
    nccl = Communicator().nccl
    transport = NcclTransport(Twins(), nccl)
    with host.graphs.on_stream():
        sharing._sum(list(map(graph_array.array, _arrays(0))), transport)
    assert transport.take_log() == []


# --- shares of the work

costs = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 600).map(lambda size: size**3)), max_size=60)


@settings(max_examples=tries(300))
@given(costs, st.integers(1, 17))
def test_each_is_done_once_and_no_process_has_much_more(costs, processes):
    """Of any such distribution the last to come is no more than what all have to do before it, and itself."""
    found = sharing.shares(costs, processes)
    assert len(found) == processes
    assert sorted(itertools.chain(*found)) == list(range(len(costs)))
    loads = [sum(costs[number] for number in members) for members in found]
    assert max(loads) <= sum(costs) / processes + max(costs, default=0) * (1 - 1 / processes) + 1e-6
    assert found == sharing.shares(costs, processes)  # all processes find the same
