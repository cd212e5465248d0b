"""scripts/benchmark.py convolutions: all shapes of a network, and the same numbers as JSON."""

import json

import pytest

from benchmarks import convolution_speed
from scripts import benchmark

pytestmark = pytest.mark.slow


def test_each_convolution_is_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(convolution_speed, "_PAUSE", 0)
    monkeypatch.setattr(convolution_speed, "_WARM_UP", 0)
    small = ("--batch", "2", "--size", "32", "--repeats", "1")
    benchmark.main(["convolutions", *small, "--json", str(tmp_path / "convolutions.json")])
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "convolutions.json").read_text())
    assert {name: record["settings"][name] for name in ("arch", "batch", "size")} == {
        "arch": "resnet18",
        "batch": 2,
        "size": 32,
    }
    assert sum(row["count"] for row in record["rows"]) == 20
    for row in record["rows"]:
        assert f"{row['count']} x {'x'.join(map(str, row['x']))} {'x'.join(map(str, row['w']))}" in printed
        assert all(value > 0 for times in row["times"].values() for value in times)


def test_totals_count_each_shape_as_often_as_it_is_there():
    shape = ((1, 2, 2, 3), (4, 1, 1, 3), (1, 1), (0, 0))
    rows = [convolution_speed.Row(*shape, count, {"NumPy float32": [1.0, 2.0, 4.0]}) for count in (1, 2)]
    assert convolution_speed.totals(rows) == {"NumPy float32": [3.0, 6.0, 12.0]}
    assert "3.00    6.00   12.00" in convolution_speed.table(rows)
