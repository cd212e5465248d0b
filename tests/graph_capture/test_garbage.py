"""Device memory that waits for Python's cyclic collector, which does not know how large it is: steps leave none."""

import gc

import pytest

import mixprec
from tests.activation_memory.test_offloading_on_device import Offloaded, _memory, _peaks
from tests.activation_memory.test_recomputation_captured import Blocks, _of_two
from tests.cases import first
from tests.graph_capture.captured_runs import REQUIRED, Run
from tests.stand_ins import nan_pool
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)

pytestmark = pytest.mark.usefixtures("host")


def _read(model, x, t):
    loss = model(x, t)
    float(loss.array)
    return loss


RUNS = {
    "refused": lambda: Run({}, lossfun=_read),
    "offloaded": lambda: Offloaded(_memory(), None),
    "eager": lambda: Run(None, dropout=0.3),
    "captured": lambda: Run(REQUIRED, dropout=0.3),
    "on two streams": lambda: Run({**REQUIRED, "second_stream": True}),
    "LAMB": lambda: Run(REQUIRED, "LAMB"),
    "K-FAC": lambda: Run(None, preconditioner=mixprec.KFAC(0.1)),
    "two losses": lambda: Run(REQUIRED, lossfun=_of_two),
    "recomputed": lambda: Run(None, network=Blocks),
    "recomputed captured": lambda: Run(REQUIRED, network=Blocks),
    "offloaded and recomputed": lambda: Offloaded(_memory(recompute=True), REQUIRED),
}


@pytest.mark.parametrize("name", first(2, RUNS))
@pytest.mark.usefixtures("no_collector")
def test_steps(name):
    run = RUNS[name]()
    _peaks(run, range(8))
    used = nan_pool.in_use()
    gc.collect()
    assert nan_pool.in_use() == used
