"""Sums over MPI: right, with the same bits on all ranks, for all dtypes and sizes, many at once."""

import pytest

from tests import mpi

_SETTING = """
    import sys
    import ml_dtypes
    import numpy as np
    from mpi4py import MPI
    from mixprec.distributed.mpi_transport import MpiTransport
    world = MPI.COMM_WORLD
    transport = MpiTransport(world)
    rank, size = transport.rank, transport.size
    DTYPES = [np.dtype(name) for name in ("float16", "bfloat16", "float32", "float64")]

    def say(*what):
        sys.stdout.write(" ".join(map(str, what)) + chr(10))

    def sums(sizes):
        random = np.random.RandomState(rank)
        arrays = [random.normal(size=size).astype(dtype) for size in sizes for dtype in DTYPES]
        everywhere = world.allgather([array.astype(np.float64) for array in arrays])
        for work in [transport.start(array) for array in arrays]:
            work.join()
            assert work.done
        bits = [array.tobytes() for array in arrays]
        assert world.allgather(bits) == [bits] * size
        for number, array in enumerate(arrays):
            exact = sum(each[number] for each in everywhere)
            eps = float(ml_dtypes.finfo(array.dtype).eps)
            bound = size * eps * sum(abs(each[number]) for each in everywhere)
            assert (abs(array.astype(np.float64) - exact) <= bound).all()
"""


SUMS = [(2, [0, 1, 2, 3, 1000, 100_000]), pytest.param(3, [1, 7, 2049, 70_001, 300_001], marks=pytest.mark.long)]


@pytest.mark.parametrize(("processes", "sizes"), SUMS)
def test_sums(processes, sizes):
    code = f"""
        sums({sizes})
        for dtype in DTYPES:
            array = np.array([np.inf, -np.inf, 1, np.nan], dtype) * (np.inf if rank == 0 else 1)
            array = array.astype(dtype)
            transport.start(array).join()
            assert not np.isfinite(array.astype(np.float32)).any()
            array = np.full((2, 3), rank + 1, dtype)
            transport.broadcast(array)
            assert (array.astype(np.float32) == 1).all()
        assert transport.gather(rank) == list(range(size))
        say("right")
    """
    assert mpi.run(processes, _SETTING, code) == ["right"] * processes


@pytest.mark.slow
def test_sums_go_on_while_the_process_computes():
    code = """
        array = np.full(300_000, rank, np.float32)
        work = transport.start(array)
        if rank == 0:
            world.recv(source=1)  # rank 1 has its sum before rank 0 waits for it
            work.join()
        else:
            while not work.done:
                transport.progress()
            world.send(None, dest=0)
        say(array.max() if work.done else "not there")
    """
    assert mpi.run(2, _SETTING, code) == ["1.0"] * 2


@pytest.mark.slow
def test_any_number_of_transports_one_after_the_other_use_few_communicators_of_which_mpich_has_2048():
    code = """
        for _ in range(2100):
            other = MpiTransport(world)  # the one before goes when this one is there
            other.start(np.ones(1)).join()
        say("right")
    """
    assert mpi.run(1, _SETTING, code) == ["right"]


def test_one_process():
    """What MPI cannot add is an error at once, and the next sum is right; sums that are joined are forgotten."""
    code = """
        try:
            transport.start(np.array(["text"]))
        except Exception as error:
            say(type(error).__name__)
        array = np.arange(3)
        transport.start(array).join()
        for _ in range(3):
            transport.start(np.ones(1)).join()
        say(array.tolist(), len(transport._under_way))  # none asks for progress
    """
    assert mpi.run(1, _SETTING, code) == ["KeyError", "[0, 1, 2] 1"]
