"""``scripts/benchmark.py bars``, ``page`` and ``profile`` as users run them, and the statistics of rows."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest

from benchmarks import rates, step_commands
from benchmarks.bars import bars_run, record, row_schedule, row_worker
from benchmarks.bars.row_schedule import Result
from benchmarks.bars.row_statistics import Row, row_of
from benchmarks.bars.row_worker import BenchmarkRow, Block, Launches
from benchmarks.bars.timed_step import Step
from benchmarks.command_arguments import ArgumentsError
from mixprec.base import files
from models import MODELS
from scripts import benchmark
from tests import ROOT
from tests.stand_ins.stub_worker import StubWorker

pytestmark = pytest.mark.slow

SMALL = ("--arch", "resnet8", "--batch", "2", "--size", "32", "--blocks", "1", "--block-steps", "1")
SETTINGS = bars_run.Settings("resnet8", [4, 2], 32, 3, 1, 60.0, None, None, None)


def test_table_and_the_same_numbers_as_json_and_chart(tmp_path, capsys):
    rows = ("--rows", "plain Chainer FP32*", "--rows", "nhwc_fused_batched.yaml", "--rows", "static_graph.yaml")
    benchmark.main(["bars", *SMALL, *rows, "--json", str(tmp_path / "bars.json")])
    printed = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.json", "bars.png"]
    found = record.read(tmp_path / "bars.json")
    assert found["complete"]
    assert found["settings"]["rows"] == [name for name in rows if name != "--rows"]
    assert printed.startswith(f"{found['device']}\nresnet8, 32x32 pixels, ")
    for row in found["rows"]:
        line = next(line for line in printed.splitlines() if line.startswith(f"  {row['name']}  "))
        assert f"{row['milliseconds']:,.2f}" in line if row["median"] else line.endswith(row["reason"])
    if found["kind"] == "cpu":
        names = ["plain Chainer FP32", "plain Chainer FP32, cuDNN", "nhwc_fused_batched.yaml", "static_graph.yaml"]
        assert [row["name"] for row in found["rows"]] == names
        first, second, third, fourth = found["rows"]
        assert (first["ratio"], second["reason"]) == (1.0, "needs a GPU")
        note = "the same step as nhwc_fused_batched.yaml"
        assert fourth == {**third, "name": fourth["name"], "note": note}


BAD_ARGUMENTS = [
    (("bars", "--block-steps", "x"), "--block-steps"),
    (("bars", "--peer", "tensorflow"), "tensorflow"),
    (("bars", "--task", "lm", "--arch", "resnet18"), "--arch: only for images, not with --task lm"),
    (("bars", "--rows", "fp64.yaml"), "--rows 'fp64.yaml': no such row; there are 'plain Chainer FP32"),
    (("profile", "--config", "no.yaml"), "no.yaml"),
    (("page", "--results", "no"), "--results: no is no folder"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD_ARGUMENTS)
def test_bad_arguments_end_with_exit_code_2(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, named in line) == (2, True)
    assert not list(tmp_path.iterdir())


def test_rows_are_chosen_by_their_names():
    def names(*patterns, peer=None):
        chosen = bars_run.Settings(**{**vars(SETTINGS), "rows": list(patterns) or None, "peer": peer})
        return [bar.name for bar in bars_run.bars_of(chosen, "@numpy", 2)]

    assert names()[:4] == ["plain Chainer FP32", "plain Chainer FP32, cuDNN", "plain Chainer mixed16", "fp32.yaml"]
    assert names("*16.yaml", "*mixed16") == ["plain Chainer mixed16", "fp16.yaml"]
    assert [name for name in names(peer="pytorch") if name not in names()] == names("PyTorch*", peer="pytorch")
    with pytest.raises(ArgumentsError, match=r"^--rows 'PyTorch\*': no such row; "):
        names("*", "PyTorch*")


# Statistics

BLOCKS = (Block(1.0, 0.3, 500), Block(2.5, 0.1, 700), Block(1.6, 0.2, 600))


def test_a_row_has_medians_of_blocks_and_the_ratio_of_turns():
    result = Result(BenchmarkRow("other", group="config"), BLOCKS, Launches(5, 0), "", "said", False)
    base = [Block(seconds, None, 900) for seconds in (4.0, 5.0, 2.0)]
    expected = Row(16, "other", "config", (16.0, 6.4, 10.0), 10.0, 6.4, 16.0, 1600.0, 200.0, note="said", peak=700)
    numbers = {"ratio": 2.0, "launches": 5, "syncs": 0}  # of 4, 2, 1.25; the ratio of the medians is 2.5
    assert row_of(16, result, base) == Row(**{**vars(expected), **numbers})


def test_what_is_not_known_is_none():
    bar = BenchmarkRow("other")
    row = row_of(16, Result(bar, (Block(1.0, None, 5),), None, "", "", False), ())
    assert (row.median, row.ratio, row.host_milliseconds, row.launches, row.syncs) == (16.0, *[None] * 4)
    result = Result(bar, (), None, "needs a GPU", "the same step as x", False)
    assert row_of(16, result, ()) == Row(16, "other", "plain", reason="needs a GPU", note="the same step as x")


# A run whose rows are those of a test


class Nothing(Step):
    def __call__(self):
        pass

    def peak(self):
        return 5


def _fails_at_4(task):
    if task.batch == 4:
        raise MemoryError("Out of memory allocating 512 bytes")
    return Nothing()


@pytest.fixture
def few(monkeypatch):
    """Rows that do nothing, in the process of the test."""
    bars = [
        BenchmarkRow("plain Chainer FP32", lambda task: Nothing()),
        BenchmarkRow("fp16.yaml", _fails_at_4, group="config"),
    ]
    monkeypatch.setattr(bars_run, "bars_of", lambda settings, specifier, batch: bars)
    monkeypatch.setattr(row_schedule, "Worker", lambda: StubWorker(row_worker))


def _records(**settings):
    chosen = bars_run.Settings(**{**vars(SETTINGS), **settings})
    return list(bars_run.run(MODELS, chosen, "@numpy", "CPU: it is a test"))


@pytest.mark.usefixtures("few")
def test_there_is_a_record_after_each_round_and_each_batch_size_and_a_whole_one_in_the_end():
    seen = []
    pairs = list(bars_run.run(MODELS, SETTINGS, "@numpy", "CPU: it is a test", progress=seen.append))
    assert [batch for _, batch in pairs] == [*[None] * 4, 4, *[None] * 4, 2, None]
    records = [found for found, batch in pairs if batch] + [pairs[-1][0]]
    assert [(len(found["rows"]), found["complete"]) for found in records] == [(2, False), (4, False), (4, True)]
    rows = {(row["batch"], row["name"]): row for row in records[-1]["rows"]}
    assert list(rows.values())[:2] == records[0]["rows"]
    assert rows[4, "fp16.yaml"]["reason"] == "MemoryError: Out of memory allocating 512 bytes"
    assert rows[4, "fp16.yaml"]["median"] is None
    assert rows[2, "fp16.yaml"]["ratio"]
    assert len(seen) == bars_run.turns_of(SETTINGS, "@numpy") == 2 * 2 * 4


@pytest.mark.usefixtures("few")
def test_what_was_cut_off_is_not_complete():
    *_, (found, _) = _records(minutes=1e-9)
    assert not found["complete"]
    assert {row["reason"] for row in found["rows"]} == {"not begun: 1e-09 minutes were over"}


@pytest.mark.usefixtures("few")
def test_a_record_that_cannot_be_written_does_not_end_the_measuring(tmp_path, monkeypatch, capsys):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(files, "write_text", mock.Mock(side_effect=full))
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["bars", *SMALL, "--json", str(tmp_path / "bars.json")])
    printed, errors = capsys.readouterr()
    assert ended.value.code == 1
    assert "\n  fp16.yaml  " in printed
    line = f"benchmark: {tmp_path}/bars.json: cannot be written: No space left on device"
    assert errors.splitlines()[-2:] == [f"{line}; measuring goes on", line]


def test_a_run_that_is_killed_leaves_the_batch_sizes_that_are_done(tmp_path):
    arguments = (*SMALL, "--batch", "2,4096", "--rows", "plain Chainer FP32", "--json", "bars.json")
    with subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "benchmark.py", "bars", *arguments],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        while not (tmp_path / "bars.json").exists() and process.poll() is None:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    found = record.read(tmp_path / "bars.json")
    assert (found["complete"], [row["batch"] for row in found["rows"]]) == (False, [2])


def test_profile_in_small(tmp_path, capsys, monkeypatch):
    known = rates.Rates(1e10, {"float16": 1e12, "float32": 1e12})
    monkeypatch.setattr(step_commands.rates, "measure", lambda specifier: known)
    small = ("--arch", "resnet8", "--batch", "2", "--size", "32", "--steps", "1", "--top", "3")
    benchmark.main(["profile", *small, "--json", str(tmp_path / "profile.json")])
    found = json.loads((tmp_path / "profile.json").read_text())
    assert found["settings"]["arch"] == "resnet8"
    assert found["rows"]
    assert "conv fprop" in capsys.readouterr().out
