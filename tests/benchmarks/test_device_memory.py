"""The most memory of a GPU that was held at a time."""

import pytest

from benchmarks.device_memory import peak_of

pytestmark = pytest.mark.slow


class Hook:
    """In place of :class:`cupy.cuda.MemoryHook`."""

    last = None

    def __enter__(self):
        Hook.last = self


class Pools:
    """CuPy's pool, and that of graphs."""

    def __init__(self):
        self.default = self.pool_bytes = 0

    def take(self, default, of_graphs, address):
        """As if memory had been allocated, unless its address is 0, after which both have so much."""
        self.default, self.pool_bytes = default, of_graphs
        Hook.last.alloc_postprocess(device_id=0, mem_size=1, mem_ptr=address)


def test_the_peak_is_that_of_both_pools_together():
    pools = Pools()
    peak = peak_of(Hook, lambda: pools.default + pools.pool_bytes)
    peak.__enter__()
    for default, of_graphs, address in [(5, 0, 1), (7, 0, 2), (0, 4, 3), (2, 6, 4), (2, 99, 0), (3, 1, 5)]:
        pools.take(default, of_graphs, address)
    assert peak is Hook.last
    assert peak.bytes == 8  # 7 and 6 at different times; 99 was refused
