"""The model of a step on an H200: what follows from launches that are known."""

import json

import pytest

from benchmarks.profile import kinds
from benchmarks.roofline import h200_model, step_estimate
from benchmarks.step import recorded
from benchmarks.step.launches import CONVERSION, Launch
from models import MODELS

pytestmark = pytest.mark.slow

MB = 10**6
STEM = Launch(kinds.CONV_FPROP, "conv_fprop", MB, flops=236e6, filter=(7, 7, 3))
WIDE = Launch(kinds.CONV_FPROP, "conv_fprop", MB, flops=10 * MB, filter=(3, 3, 64))
NORMALIZATION = Launch(kinds.BN_FORWARD, "batch_norm", 3 * MB, again=MB)
SUM = Launch(kinds.GRADIENT_SUM, "add", 3 * MB)


@pytest.mark.parametrize(
    ("launch", "batch", "expected"),
    [
        (WIDE, 256, 256 * MB / (0.75 * 4.3e12)),
        (WIDE, 32, 32 * MB / (0.70 * 4.3e12)),
        (Launch(kinds.CONV_WGRAD, "conv_wgrad", MB, filter=(3, 3, 64)), 256, 1.15 * 256 * MB / (0.75 * 4.3e12)),
        (STEM, 256, 256 * 236e6 / (0.12 * 790e12)),
        (NORMALIZATION, 256, 256 * 3 * MB / (0.84 * 4.3e12)),
        (NORMALIZATION, 1, 9e-6),  # two passes of cuDNN
        (SUM, 1, 5e-6),
        (Launch(kinds.GRADIENT_SUM, "add", 3 * MB, sectors=32 * MB), 256, 256 * 32 * MB / 6.5e12),
        (Launch(kinds.UPDATE, "update", fixed=650 * MB), 256, 650 * MB / (0.84 * 4.3e12)),
    ],
)
def test_seconds(launch, batch, expected):
    assert h200_model.seconds(launch, batch) == pytest.approx(expected)


def test_other_conversions_stay():
    conversion = Launch(CONVERSION, "to_nhwc", 2 * MB)
    assert h200_model.sums_apart([conversion, SUM, conversion, conversion]) == [conversion, SUM, conversion]


def test_the_step_of_a_network(monkeypatch):
    """What it moves stands beside the counts; here is what becomes of it."""
    known = [STEM, NORMALIZATION, SUM]
    monkeypatch.setattr(recorded, "record", lambda *_, choices, **__: dict.fromkeys(choices, known))
    found = step_estimate.step(MODELS["resnet18"], arch="resnet18", size=32, batches=[32, 256], dtype="float16")
    rows = {row.kind: row for row in found.kinds}
    assert [row.launches for row in found.kinds] == [1, 1, 1, 0, 3]
    assert rows[kinds.GRADIENT_SUM].gigabytes == 256 * 3 * MB / 1e9
    assert (rows[kinds.GRADIENT_SUM].least, rows[kinds.BN_FORWARD].least) == (0, 256 * 2 * MB / 1e9)
    assert rows["gaps"].microseconds == pytest.approx([3 * 1.1, 3 * 1.1])
    ways = {way.name: way for way in found.ways}
    assert ways["as it is"].microseconds == rows["all"].microseconds
    assert ways["gradients added in the order of the axes"].launches == 4
    lines = found.table().splitlines()
    assert "nothing is measured" in lines[0]
    assert len([line for line in lines if line.startswith("  as it is ")]) == 1
    record = json.loads(json.dumps(found.as_json()))
    assert record["is"] == "a model, nothing of it is measured"
    assert [row["kind"] for row in record["kinds"]][-2:] == ["gaps", "all"]


@pytest.mark.long
def test_choices_of_the_device():
    """The launches that pass over images: of a batch normalization one forward, where a convolution took the sums."""
    choices = (recorded.AS_IT_IS, recorded.STATISTICS_APART)
    found = recorded.record(MODELS["resnet18"], arch="resnet18", size=32, dtype="float16", choices=choices)
    counted = [
        [
            sum(each.kind == kind and each.bytes > 0 for each in launches)
            for kind in (kinds.BN_FORWARD, kinds.BN_BACKWARD)
        ]
        for launches in found.values()
    ]
    convolutions, stem = 20, 1
    assert counted == [[convolutions + stem, 2 * convolutions], [2 * convolutions, 2 * convolutions]]
