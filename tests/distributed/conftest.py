"""The transport without MPI."""

import pytest

from mixprec.distributed import exchange
from mixprec.optimizer import ranks
from tests.stand_ins.twin_transport import Twins


@pytest.fixture
def twins(monkeypatch):
    """The transport of all optimizers that ``wrapped`` makes; buckets have 64 bytes."""
    transport = Twins()
    monkeypatch.setattr(ranks, "MpiTransport", lambda mpi_comm: transport)
    monkeypatch.setattr(exchange, "BUCKET", 64)
    return transport
