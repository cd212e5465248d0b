"""scripts/benchmark.py convolutions: all shapes of a network, and the same numbers as JSON."""

import json

import pytest

from benchmarks import convolutions
from scripts import benchmark
from tests import ROOT

pytestmark = pytest.mark.slow

RECORD = ROOT / "benchmarks" / "results" / "2026-11-24-convolutions-cpu-avx512.json"


def test_each_convolution_is_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(convolutions, "_PAUSE", 0)
    monkeypatch.setattr(convolutions, "_WARM_UP", 0)
    small = ("--batch", "2", "--size", "32", "--repeats", "1")
    benchmark.main(["convolutions", *small, "--json", str(tmp_path / "convolutions.json")])
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "convolutions.json").read_text())
    settings = {name: record["settings"][name] for name in ("arch", "batch", "size")}
    assert settings == {"arch": "resnet18", "batch": 2, "size": 32}
    kept = json.loads(RECORD.read_text())["rows"]  # of 8 images of 64 pixels
    halved = [{**row, "x": [2, row["x"][1] // 2, row["x"][2] // 2, row["x"][3]]} for row in kept]
    assert _shapes(record["rows"]) == _shapes(halved)
    for row in record["rows"]:
        assert f"{row['count']} x {'x'.join(map(str, row['x']))} {'x'.join(map(str, row['w']))}" in printed
        assert all(value > 0 for times in row["times"].values() for value in times)


def _shapes(rows):
    return sorted([row[name] for name in ("x", "w", "stride", "pad", "count")] for row in rows)


def test_totals_count_each_shape_as_often_as_it_is_there():
    shape = ((1, 2, 2, 3), (4, 1, 1, 3), (1, 1), (0, 0))
    rows = [convolutions.Row(*shape, count, {"NumPy float32": [1.0, 2.0, 4.0]}) for count in (1, 2)]
    assert convolutions.totals(rows) == {"NumPy float32": [3.0, 6.0, 12.0]}
    assert "3.00    6.00   12.00" in convolutions.table(rows)
