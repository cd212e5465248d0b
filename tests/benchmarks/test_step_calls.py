"""How the calls of a ResNet-50's step are computed by rule: as had won on an autotuned H100."""

import collections

import pytest

from benchmarks.recording_device import null_device
from benchmarks.step import counts
from mixprec.app.parts.model import build_model
from mixprec.app.run import synthetic_run
from mixprec.backends.device_log import recording
from models import MODELS
from tests.backends.cudnn import cold_start
from tests.cases import first

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def notes():
    """The launches of a step with ``heuristic`` on the stand-in for an H100."""
    config = synthetic_run.load(
        "static_graph.yaml", arch="resnet50", batch=2, size=64, overrides=["cudnn.autotune=heuristic"]
    )
    _, optimizer, _ = build_model(config, MODELS["resnet50"], "@numpy")
    with counts._on_device(config, optimizer, counts._first_batch(config)) as (lossfun, given):
        for _ in range(4):
            optimizer.update(lossfun, *given)
        with recording() as notes:
            optimizer.update(lossfun, *given)
    return notes


def test_the_ways_that_had_won(notes):
    """Own batch normalizations, sums in all convolutions, the first of which is on squares, both ways."""
    operations = [note.arguments[0] for note in notes if note.kind == "cudnn"]
    assert {operation.kind for operation in operations} == {"conv_fprop", "conv_dgrad", "conv_wgrad"}
    fprops = [operation for operation in operations if operation.kind == "conv_fprop"]
    assert [len(fprops), sum("sum" in operation.has for operation in fprops)] == [53 + 1, 53]  # and the last layer
    launched = collections.Counter(note.name for note in notes if note.kind == "kernel")
    assert (launched["fold_images"], launched["fold_filters"], launched["unfold_filters"]) == (1, 1, 1)
    # One forward, as convolutions have taken the statistics, and two backward. Gradients are added on the way.
    assert launched["batch_norm_statistics"] == launched["add"] == 0
    for kind, number in (("batch_norm", 53 - 1 - 2 * 4), ("batch_norm_dual", 4), ("batch_norm_max_pool", 1)):
        forward = kind if kind.endswith("pool") else f"{kind}_apply"
        for name in (forward, f"{kind}_backward_sums", f"{kind}_backward_apply"):
            assert launched[name] == number, name


@pytest.mark.parametrize(("autotune", "capability"), first(0, [("measure", 90), ("heuristic", 90), ("measure", 80)], 1))
def test_no_engine_of_a_batch_normalization_is_built_in_a_start(autotune, capability):
    asked = cold_start.asked(autotune, capability=capability, size=64)
    assert null_device.CudnnContext.capability == 90  # all is as before
    found = collections.Counter(operation.kind for operation in asked)
    assert found.keys() == {"conv_fprop", "conv_dgrad", "conv_wgrad"}
    # One way by rule, or both: with sums and without, and three for the first convolution.
    assert (found["conv_fprop"] > 40) == (autotune == "measure" and capability != 90)
