"""scripts/benchmark.py: every row is there, and the numbers fit together."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from benchmarks import compared_optimizers, step_commands, update
from benchmarks.command_arguments import ArgumentsError
from mixprec.base.process_limits import number_of_threads
from models import MODELS
from scripts import benchmark
from tests import ROOT

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "benchmark.py"


@pytest.fixture
def small_mix(monkeypatch):
    monkeypatch.setattr(update, "MIX", ((3, 5), (7,)))


def test_update_prints_tables_and_writes_the_same_numbers(tmp_path, capsys, small_mix):
    benchmark.main(["update", "--arch", "resnet8", "--repeats", "1", "--json", str(tmp_path / "update.json")])
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "update.json").read_text())
    assert record["settings"] == {"arch": "resnet8", "repeats": 1, "threads": number_of_threads()}
    assert {"date", "python", "numpy", "chainer", "mixprec", "commit", "cpu"} <= record.keys()
    names = {"plain Chainer", "mixprec", "mixprec, batched=False"}
    parts = {}
    for row in record["rows"]:
        parts.setdefault(row["part"], {})[row["name"]] = row
    assert {"mix of shapes, float16, weight decay", "all elements", "one element each"} <= parts.keys()
    for rows in parts.values():
        assert set(rows) - {update.TORCH} == names
        for name, row in rows.items():
            assert f"  {name:42}{row['microseconds']:12.0f}" in printed
            assert row["ratio"] == pytest.approx(rows["plain Chainer"]["microseconds"] / row["microseconds"])


def test_without_torch_there_are_the_other_rows(monkeypatch, small_mix):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(compared_optimizers, "take_turns", lambda names, *_: {name: [1.0] for name in names})
    rows = update.measure(MODELS["resnet8"], repeats=1)
    assert {row.name for row in rows} == {"plain Chainer", "mixprec", "mixprec, batched=False"}


BAD = [
    (("update", "--repeats", "0"), "argument --repeats: found '0'; wanted: a whole number from 1 on"),
    (("update", "--repeats", "x"), "argument --repeats: found 'x'; wanted: a whole number from 1 on"),
    (("update", "--arch", "resnet9"), "argument --arch: invalid choice: 'resnet9'"),
    (("update", "--json", "no/such/folder.json"), "argument --json: no/such is no folder"),
    (("update", "--json", "a.txt"), "argument --json: found 'a.txt', expected a name that ends in .json"),
    (("update", "--json", "a.json/"), "argument --json: found 'a.json/', expected a name that ends in .json"),
    (("update", "--json", "/proc/a.json"), "argument --json: /proc takes no files: "),
    (("page", "--out", "a.txt"), "argument --out: found 'a.txt', expected a name that ends in .md"),
    (("bars", "--batch", "8,x"), "argument --batch: found '8,x', expected integers of at least 1 with commas"),
    (("bars", "--batch", "8,4,8"), "argument --batch: found '8,4,8', expected each number once"),
    (("bars", "--limit", "x"), "argument --limit: found 'x', expected a finite number above 0"),
    (("updates",), "argument command: invalid choice: 'updates'"),
]


@pytest.mark.parametrize(("arguments", "error"), BAD)
def test_bad_arguments_end_with_one_line_and_exit_code_2(arguments, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {error}")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_is_one_line_that_says_where_the_numbers_are(tmp_path):
    arguments = ("--batch", "2,1024", "--arch", "resnet8", "--size", "32", "--blocks", "1", "--block-steps", "1")
    rows = ("--rows", "plain Chainer FP32")
    with subprocess.Popen(
        [sys.executable, SCRIPT, "bars", *arguments, *rows, "--json", "bars.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        next(line for line in process.stdout if line.startswith("batch 2"))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines() == ["benchmark: interrupted; what was measured before is in bars.json"]


@pytest.mark.long
def test_a_closed_output_is_one_line(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["step", "--arch", "resnet8", "--size", "32"]
    process = subprocess.run([sys.executable, SCRIPT, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert process.returncode == 1
    assert process.stderr == "benchmark: the output is closed; nothing is saved\n"


def test_bars_have_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(step_commands, "_RESULTS", tmp_path)
    cpu = step_commands._file_of("@numpy", "CPU: asked for")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-bars-cpu\.json", cpu.name)
    gpu = step_commands._file_of("@cupy:0", "GPU 0 of 1: NVIDIA H200, compute capability 9.0, 139 GiB")
    assert gpu.parent == tmp_path
    assert gpu.name.endswith("-bars-nvidia-h200.json")
    monkeypatch.setattr(step_commands, "_RESULTS", tmp_path / "no")
    with pytest.raises(ArgumentsError, match=r"^without --json: .*no is no folder$"):
        step_commands._file_of("@numpy", "CPU: asked for")
