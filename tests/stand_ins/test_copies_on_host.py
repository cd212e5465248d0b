"""The stand-in's copies: random programs are right in all orders of the streams."""

import itertools

import numpy as np
import pytest

from mixprec import backends
from tests.stand_ins import graph_array, graph_work
from tests.stand_ins.copies_on_host import HostCopies
from tests.stand_ins.copy_programs import Program
from tests.stand_ins.graph_array import GraphArray
from tests.stand_ins.graph_on_host import GraphCuda

pytestmark = pytest.mark.slow

SHAPE = 3, 50
ORDERS = 50


@pytest.fixture(scope="module")
def cuda():
    cuda = GraphCuda()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends._OTHERS, GraphArray, cuda)
        yield cuda


class Device:
    """See :class:`~tests.stand_ins.copy_programs.Program`."""

    def __init__(self):
        self._base = graph_array.array(self.value(1))

    def value(self, number):
        return np.arange(1, 151, dtype=np.float32).reshape(SHAPE) * np.float32(number)

    def new(self, number):
        return self._base * np.float32(number)

    def change(self, array, number):
        array += np.float32(number)

    def read(self, array):
        return array * np.float32(1)


def is_right(program):
    return all(np.array_equal(graph_array.receive(found), value) for found, value in program.read)


def at_once(copies, seed):
    with graph_work.copies_at_random(seed):
        program = Program(copies, Device(), seed)
        program.run()
    assert program.read
    return is_right(program)


def in_graph(cuda, copies, seed, orders):
    """Whether all launches in these orders are right."""
    cuda.graphs.seeds = itertools.count()
    try:
        with cuda.graphs.on_stream():
            program = Program(copies, Device(), seed)
            graph, _ = cuda.graphs.capture(program.run)
            for _ in range(orders):
                for found, _ in program.read:
                    found.fill(np.nan)
                graph.launch()
                if not is_right(program):
                    return False
    finally:
        cuda.graphs.seeds = None
    return True


def test_random_programs_at_once():
    assert all(at_once(HostCopies(), seed) for seed in range(ORDERS))


def test_random_programs_in_graphs(cuda):
    for seed in range(4):
        copies = HostCopies()
        assert in_graph(cuda, copies, seed, ORDERS)
        assert at_once(copies, seed)  # with slots that are parts of a graph
        assert in_graph(cuda, copies, seed + 10, 3)


def test_views_come_back_as_they_were(cuda):
    copies = HostCopies()
    base = graph_array.array(np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5))
    views = [base.transpose(0, 3, 1, 2), base[:, 1:], base[1, ::-1, ::2], base.reshape(-1)[3:4]]
    root = copies.root_of(views[0])
    assert all(copies.root_of(view) is root for view in views)
    slot = copies.take(copies.size_of(root))
    layouts, values = [copies.layout_of(view) for view in views], [graph_array.receive(view) for view in views]
    copies.wait(copies.out(root, slot))
    del base, views, root
    root, mark = copies.back(slot)
    copies.wait(mark)
    for layout, value in zip(layouts, values, strict=True):
        array = copies.array_in(root, layout)
        np.testing.assert_array_equal(graph_array.receive(array), value)
        assert array.strides == layout.strides
        assert copies.root_of(array) is root
