"""mixprec.offload on the stand-in device and on a GPU: eager and captured steps, with the same bits."""

import pytest

import mixprec
from mixprec.activation_memory import made_plans, planning
from tests.activation_memory.test_offloading_on_device import Offloaded
from tests.graph_capture.captured_runs import REQUIRED, assert_same, eager
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides

STEPS = 10


@both_sides
@pytest.mark.parametrize("capture", [pytest.param(None, marks=pytest.mark.slow), REQUIRED])
def test_the_same_bits(side, capture, monkeypatch):  # noqa: F811
    def plan(recording, budget, bus, **wishes):
        return planning.plan(recording, planning.least(recording, smallest=wishes["smallest"]), bus, **wishes)

    monkeypatch.setattr(made_plans, "plan", plan)
    memory = mixprec.offload("1 TB", smallest=2**10)
    run = Offloaded(memory, capture, side=side, dropout=0.3).run(range(STEPS))
    assert memory.plans[0].schedule.bytes_out > 0
    assert capture is None or run.step.replays > 0
    assert_same(run, eager(STEPS, side=side, dropout=0.3))
