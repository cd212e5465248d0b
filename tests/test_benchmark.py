"""scripts/benchmark.py: every row is there, and the numbers fit together."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "scripts" / "benchmark.py"


def _run(*arguments, cwd):
    return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)


def test_step_prints_a_table_and_writes_the_same_numbers(tmp_path):
    small = ("--batch", "2", "--size", "8", "--steps", "3", "--json", "step.json")
    process = _run("step", *small, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    record = json.loads((tmp_path / "step.json").read_text())
    assert record["settings"] == {"arch": "resnet8", "batch": 2, "size": 8, "steps": 3}
    names = ["plain Chainer float32", "mixprec float32", "mixprec float16", "plain Chainer mixed16"]
    assert [row["name"] for row in record["rows"]] == names
    base = record["rows"][0]["milliseconds"]
    for row in record["rows"]:
        assert row["ratio"] == pytest.approx(row["milliseconds"] / base)
        assert f"{row['name']:24}{row['milliseconds']:12.1f}" in process.stdout


@pytest.mark.parametrize("arguments", [("--batch", "0"), ("--arch", "resnet9"), ("--steps", "x")])
def test_bad_arguments_end_with_exit_code_2(arguments, tmp_path):
    process = _run("step", *arguments, cwd=tmp_path)
    assert process.returncode == 2
    assert arguments[0] in process.stderr
    assert "Traceback" not in process.stderr
