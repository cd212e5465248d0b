"""scripts/benchmark.py inference: all ways, the same numbers as JSON, and their section of the page."""

import json

import pytest

from benchmarks.bars import page
from scripts import benchmark

pytestmark = pytest.mark.slow

pytest.importorskip("onnx", reason="ONNX is not installed: extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra export")

WAYS = ["plain Chainer FP32", "mixprec FP32", "mixprec FP16", "mixprec BF16"]
WAYS += ["onnxruntime FP32", "onnxruntime FP16", "onnxruntime INT8"]


@pytest.mark.long
def test_all_ways_are_measured(tmp_path, capsys):
    path = tmp_path / "inference.json"
    small = ("--arch", "resnet8", "--batch", "1,2", "--size", "32", "--repeats", "1", "--seconds", "1")
    benchmark.main(["inference", *small, "--json", str(path)])
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert [(row["name"], row["batch"]) for row in record["rows"]] == [(way, batch) for batch in (1, 2) for way in WAYS]
    assert all(speed > 0 for row in record["rows"] for speed in row["speeds"])
    assert all((row["size"] is None) == ("onnx" not in row["name"]) for row in record["rows"])
    assert record["export_peak"] > 50e6
    assert all(way in printed for way in WAYS)
    text = page.page({}, (), {"../results/inference.json": record})
    assert "1 thread" in text or f"{record['threads']} threads" in text
    lines = [line for line in text.splitlines() if line.startswith(("| onnxruntime", "| mixprec", "| plain Chainer"))]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == WAYS
    assert all(line.count("|") == 5 for line in lines)
    assert "scripts/benchmark.py inference --arch resnet8 --batch 1,2 --size 32 --repeats 1 --seconds 1`" in text
