"""Captured steps with K-FAC on two ranks, which are threads, on the stand-in device."""

import numpy as np
import pytest

import mixprec
from mixprec.distributed import buckets
from mixprec.optimizer import ranks as ranks_of_optimizer
from tests.graph_capture.captured_runs import Run
from tests.graph_capture.test_odd import Small, batch
from tests.stand_ins import graph_work, rank_threads
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.nccl_on_host import Communicator

OVERFLOWS = {(2, 0), (9, 1), (12, 0), (13, 1)}  # (step, rank)
STEPS = 18


@pytest.fixture
def two_ranks(host, announced, monkeypatch):  # noqa: F811
    """Runs on two ranks with these arguments of capture, ``None`` for eager runs."""
    monkeypatch.setattr(ranks_of_optimizer, "MpiTransport", rank_threads.ThreadTransport)
    monkeypatch.setattr(buckets, "MOST", 2**10)

    def both(capture):
        def run(rank, of_threads):
            kfac = mixprec.KFAC(0.1, kl_clip=1e-2, factor_every=2, inverse_every=4)
            made = Run(capture, communicator=Communicator(of_threads), network=Small, preconditioner=kfac)
            for number in range(STEPS):
                made.set_rate(number)
                made.once(*batch(2 * number + rank, 4, bad=(number, rank) in OVERFLOWS))
            made.found = {**made.results(), **{name: np.array(array) for name, array in kfac.state().items()}}
            return made

        with host.graphs.on_stream():
            return rank_threads.run(2, run)

    return both


@pytest.mark.slow
def test_captured_steps_are_eager_ones(two_ranks, monkeypatch):
    """Overflows are skipped on both; nobody is asked by MPI while a graph is captured."""
    exchange = rank_threads.ThreadRanks.exchange

    def checked(ranks, value, channel):
        assert not graph_work.is_capturing()
        return exchange(ranks, value, channel)

    monkeypatch.setattr(rank_threads.ThreadRanks, "exchange", checked)
    eager, captured = two_ranks(None), two_ranks({"required": True, "warmup": 2})
    for one, other in zip(captured, eager, strict=True):
        assert one.found.keys() == other.found.keys()
        for name, value in other.found.items():
            assert one.found[name].tobytes() == value.tobytes(), name
        assert one.optimizer.skipped == len(OVERFLOWS)
        assert one.step.replays > STEPS // 3  # steps with inverses, and plain ones
    first, second = captured
    assert first.optimizer.communicator.nccl.done == second.optimizer.communicator.nccl.done
    assert first.step.replays == second.step.replays
    for name, array in first.found.items():
        if "K-FAC" in name or "in its dtype" in name:
            assert second.found[name].tobytes() == array.tobytes(), name
