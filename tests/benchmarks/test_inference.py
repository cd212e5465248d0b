"""scripts/benchmark.py inference: all ways, and the same numbers as JSON."""

import json

import pytest

from benchmarks.bars import page
from scripts import benchmark

pytestmark = pytest.mark.long

pytest.importorskip("onnx", reason="ONNX is not installed: extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra export")

WAYS = ["plain Chainer FP32", "mixprec FP32", "mixprec FP16", "mixprec BF16"]
WAYS += ["onnxruntime FP32", "onnxruntime FP16", "onnxruntime INT8"]


def test_all_ways_are_measured(tmp_path, capsys):
    path = tmp_path / "inference.json"
    small = ("--arch", "resnet8", "--batch", "1,2", "--size", "32", "--repeats", "1", "--seconds", "1")
    benchmark.main(["inference", *small, "--json", str(path)])
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert [(row["name"], row["batch"]) for row in record["rows"]] == [(way, batch) for batch in (1, 2) for way in WAYS]
    assert all(speed > 0 for row in record["rows"] for speed in row["speeds"])
    assert all((row["size"] is None) == ("onnx" not in row["name"]) for row in record["rows"])
    shown = page.page({}, inferences={"inference.json": record})
    assert all(way in printed and f"| {way} | " in shown for way in WAYS)
