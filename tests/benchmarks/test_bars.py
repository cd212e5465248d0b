"""``scripts/benchmark.py bars``, ``page``, ``roofline`` and ``profile`` as users run them."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import types
from unittest import mock

import pytest

from benchmarks.bars import bars_run, record, row_schedule, row_worker
from benchmarks.bars.row_schedule import Timing
from benchmarks.bars.row_worker import BenchmarkRow
from benchmarks.bars.timed_step import Step
from benchmarks.command_arguments import ArgumentsError
from benchmarks.rates import Rates
from benchmarks.roofline import limit, network_layers
from benchmarks.step.counts import Counts
from mixprec import files
from models import MODELS
from scripts import benchmark
from tests import ROOT
from tests.stand_ins.stub_worker import StubWorker

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "benchmark.py"
SMALL = ("--arch", "resnet8", "--batch", "2", "--size", "32", "--blocks", "1", "--block-steps", "1")
SETTINGS = bars_run.Settings("resnet8", [2], 32, 1, 1, 60.0, None, None, None)
RATES = Rates(1e9, {"float32": 1e9, "float16": 1e9, "bfloat16": 1e9})


def test_table_and_the_same_numbers_as_json_and_chart(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bars_run, "_COUNTED", {**bars_run._COUNTED, "size": 32})
    rows = ("--rows", "plain Chainer FP32*", "--rows", "nhwc_fused_batched.yaml", "--rows", "static_graph.yaml")
    benchmark.main(["bars", *SMALL, *rows, "--json", str(tmp_path / "bars.json")])
    printed = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.json", "bars.png"]
    found = record.read(tmp_path / "bars.json")
    assert found["complete"]
    assert found["settings"] == {
        "arch": "resnet8",
        "batch": [2],
        "size": 32,
        "blocks": 1,
        "block_steps": 1,
        "limit": 600.0,
        "minutes": None,
        "peer": None,
        "rows": [name for name in rows if name != "--rows"],
    }
    assert printed.startswith(f"{found['device']}\nresnet8, 32x32 pixels, ")
    assert found["rates"]["bandwidth"] > 0
    for row in found["rows"]:
        line = next(line for line in printed.splitlines() if line.startswith(f"  {row['name']}  "))
        assert f"{row['milliseconds']:,.2f}" in line if row["median"] else line.endswith(row["reason"])
    if found["kind"] == "cpu":
        counts = {count["name"]: count for count in found["counts"]}
        assert list(counts) == ["nhwc_fused_batched.yaml", "static_graph.yaml"]
        assert counts["nhwc_fused_batched.yaml"]["launches"] > 250
        assert counts["static_graph.yaml"]["graph_launches"] == 1
        names = ["plain Chainer FP32", "plain Chainer FP32, cuDNN", "nhwc_fused_batched.yaml", "static_graph.yaml"]
        assert [row["name"] for row in found["rows"]] == names
        first, second, third, fourth = found["rows"]
        assert (first["ratio"], second["reason"]) == (1.0, "needs a GPU")
        assert {**third, "name": "", "note": ""} == {**fourth, "name": "", "note": ""}
        assert fourth["note"] == "the same step as nhwc_fused_batched.yaml"
        assert all(row["roofline"] > 0 for row in (first, third))


@pytest.mark.parametrize(
    "arguments",
    [
        ("bars", "--batch", "32,0"),
        ("bars", "--blocks", "0"),
        ("bars", "--block-steps", "x"),
        ("bars", "--arch", "x"),
        ("bars", "--peer", "tensorflow"),
        ("bars", "--minutes", "0"),
        ("bars", "--limit", "inf"),
        ("bars", "--json", "no/such/folder.json"),
        ("bars", "--rows", "fp64.yaml"),
        ("roofline", "--bandwidth", "4300"),
        ("roofline", "--dtype", "float64"),
        ("profile", "--config", "no.yaml"),
        ("profile", "--steps", "0"),
        ("page", "--results", "no"),
        ("page", "--out", "no/such/page.md", "--results", "."),
    ],
)
def test_bad_arguments_end_with_exit_code_2(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(arguments)
    errors = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(errors.splitlines()) == 1
    assert arguments[1] in errors or arguments[2] in errors
    assert not list(tmp_path.iterdir())


def test_what_is_measured_by_default():
    assert bars_run.defaults("@numpy") == {"arch": "resnet18", "batch": [8], "size": 64, "block_steps": 10}
    assert bars_run.defaults("@cupy:0") == {
        "arch": "resnet50",
        "batch": [32, 64, 128, 256, 512],
        "size": 224,
        "block_steps": 30,
    }


def test_rows_are_chosen_by_their_names():
    def names(*patterns, peer=None):
        chosen = bars_run.Settings(**{**vars(SETTINGS), "rows": list(patterns) or None, "peer": peer})
        return [bar.name for bar in bars_run.bars_of(chosen, "@numpy", 2)]

    assert names()[:4] == ["plain Chainer FP32", "plain Chainer FP32, cuDNN", "plain Chainer mixed16", "fp32.yaml"]
    assert names("*16.yaml", "*mixed16") == ["plain Chainer mixed16", "fp16.yaml"]
    assert [name for name in names(peer="pytorch") if name not in names()] == names("PyTorch*", peer="pytorch")
    with pytest.raises(ArgumentsError, match=r"^--rows 'PyTorch\*': no such row; there are 'plain Chainer FP32', "):
        names("*", "PyTorch*")


# A run whose rows are those of a test


class Nothing(Step):
    def __call__(self):
        pass

    def peak(self):
        return 5


def _nothing(task):
    return Nothing()


def _fails_at_4(task):
    if task.batch == 4:
        raise MemoryError("Out of memory allocating 512 bytes")
    return Nothing()


@pytest.fixture
def few(monkeypatch):
    """Rows that do nothing, in the process of the test, and counts and rates that take no time."""
    bars = [
        BenchmarkRow("plain Chainer FP32", _nothing),
        BenchmarkRow("fp16.yaml", _fails_at_4, group="config", level="nhwc", dtype="float16"),
        BenchmarkRow("odd", _nothing, group="peer", level="nhwc", dtype="tf32"),
    ]
    monkeypatch.setattr(bars_run, "bars_of", lambda settings, specifier, batch: bars)
    monkeypatch.setattr(bars_run, "_rates", lambda specifier: RATES)
    monkeypatch.setattr(row_schedule, "Worker", lambda: StubWorker(row_worker))
    monkeypatch.setattr(
        bars_run.counting, "counts_of", lambda ways, network, **settings: {"fp16.yaml": Counts(launches=1)}
    )
    return bars


def _records(specifier="@numpy", **settings):
    chosen = bars_run.Settings(**{**vars(SETTINGS), **settings})
    return list(bars_run.run(MODELS, chosen, specifier, "CPU: it is a test"))


def test_there_is_a_record_after_each_batch_size_and_a_whole_one_in_the_end(few):
    pairs = _records(batch=[4, 2])
    assert [batch for _, batch in pairs] == [None, None, 4, None, None, 2, None]  # a round, the end, and that of all
    records = [found for found, batch in pairs if batch] + [pairs[-1][0]]
    assert [(len(found["rows"]), found["complete"], len(found["counts"])) for found in records] == [
        (3, False, 0),
        (6, False, 0),
        (6, True, 1),
    ]
    assert records[-1]["rows"][:3] == records[0]["rows"]
    assert [row["batch"] for row in records[-1]["rows"]] == [4, 4, 4, 2, 2, 2]


def test_out_of_memory_is_a_row_at_its_batch_size(few, tmp_path):
    *_, (found, _) = _records(batch=[4, 2])
    rows = {(row["batch"], row["name"]): row for row in found["rows"]}
    assert rows[4, "fp16.yaml"]["reason"] == "MemoryError: Out of memory allocating 512 bytes"
    assert rows[4, "fp16.yaml"]["median"] is None
    assert rows[2, "fp16.yaml"]["median"] > 0
    (tmp_path / "bars.json").write_text(json.dumps(found))
    assert record.read(tmp_path / "bars.json") == json.loads(json.dumps(found))


@pytest.mark.parametrize("specifier", ["@numpy", "@cupy:0"])
def test_the_roofline_is_that_of_level_dtype_batch_and_device(few, specifier, monkeypatch):
    monkeypatch.setattr(bars_run.chainer_rows, "base", lambda specifier: "plain Chainer FP32")
    monkeypatch.setattr(bars_run.cupti, "why_not", lambda: "it is a test")
    *_, (found, _) = _records(specifier)
    walked, assumed = network_layers.layers(MODELS["resnet8"], 32), limit.assumptions(specifier)
    for row, bar in zip(found["rows"][:2], few, strict=False):
        most = limit.limit(walked, bar.level, bar.dtype, 2, RATES, **assumed)
        assert row["roofline"] == row["median"] / most.images_per_second
    assert (found["rows"][0]["host_milliseconds"] is None) == (specifier == "@numpy")


def test_what_was_cut_off_is_not_complete(few):
    *_, (found, _) = _records(batch=[4, 2], minutes=1e-9, blocks=3)
    assert not found["complete"]
    assert {row["reason"] for row in found["rows"]} == {"not begun: 1e-09 minutes were over"}


def test_rows_in_a_dtype_without_a_rate_have_no_roofline(few):
    *_, (found, _) = _records()
    assert [row["roofline"] is None for row in found["rows"]] == [False, False, True]


def test_a_machine_whose_rates_cannot_be_measured_has_no_roofline_and_says_so(few, monkeypatch, caplog):
    monkeypatch.undo()
    monkeypatch.setattr(row_schedule, "Worker", lambda: StubWorker(row_worker))
    monkeypatch.setattr(bars_run, "bars_of", lambda settings, specifier, batch: few)
    monkeypatch.setattr(bars_run.counting, "counts_of", lambda ways, network, **settings: {})
    monkeypatch.setattr("mixprec.announcements._said", set())
    monkeypatch.setattr(bars_run, "_RATES_LIMIT", 1e-3)
    *_, (found, _) = _records()
    assert found["rates"] is None
    assert {row["roofline"] for row in found["rows"]} == {None}
    assert [entry.getMessage() for entry in caplog.records if entry.name == "mixprec"] == [
        "there is no share of the roofline: a copy and a large product could not be measured: no answer within 0.001 s"
    ]


def test_a_record_that_cannot_be_written_does_not_end_the_measuring(few, tmp_path, monkeypatch, capsys):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(files, "write_text", mock.Mock(side_effect=full))
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["bars", *SMALL, "--json", str(tmp_path / "bars.json")])
    printed, errors = capsys.readouterr()
    assert ended.value.code == 1
    assert "\n  fp16.yaml  " in printed
    line = f"benchmark: {tmp_path}/bars.json: cannot be written: No space left on device"
    assert errors.splitlines()[-2:] == [f"{line}; measuring goes on", line]


def test_the_minutes_begin_when_the_machine_has_been_measured(few, monkeypatch):
    now, plans = [0.0], []
    monkeypatch.setattr(bars_run, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(bars_run, "_rates", lambda specifier: now.__setitem__(0, 100.0))
    monkeypatch.setattr(
        row_schedule, "Timing", lambda *arguments, **keywords: plans.append(keywords) or Timing(1, 1, 1.0)
    )
    _records(minutes=1)
    assert plans[0]["end"] == 160.0


def test_without_rates_nothing_is_measured_first(few, monkeypatch):
    monkeypatch.setattr(bars_run, "_rates", mock.Mock(side_effect=AssertionError))
    *_, (found, _) = _records(no_rates=True)
    assert (found["rates"], found["rows"][0]["roofline"]) == (None, None)
    assert found["rows"][0]["median"] > 0


def test_progress_is_called_as_often_as_was_said(few):
    seen = []
    chosen = bars_run.Settings(**{**vars(SETTINGS), "batch": [4, 2], "blocks": 3})
    list(bars_run.run(MODELS, chosen, "@numpy", "CPU: it is a test", progress=seen.append))
    assert len(seen) == bars_run.turns_of(chosen, "@numpy") == 2 * 3 * 4


def test_a_run_that_is_killed_leaves_the_batch_sizes_that_are_done(tmp_path):
    arguments = (*SMALL, "--batch", "2,4096", "--rows", "plain Chainer FP32", "--no-rates")
    with subprocess.Popen(
        [sys.executable, SCRIPT, "bars", *arguments, "--json", "bars.json"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        end = time.monotonic() + 240
        while not (tmp_path / "bars.json").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    found = record.read(tmp_path / "bars.json")
    assert (found["complete"], [row["batch"] for row in found["rows"]]) == (False, [2])


def test_roofline_of_given_rates(tmp_path):
    """In a process of its own, as a user runs the script."""
    given = ("--arch", "resnet8", "--size", "32", "--bandwidth", "4300", "--tflops", "790")
    command = [sys.executable, SCRIPT, "roofline", *given, "--json", "roofline.json"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stderr
    found = json.loads((tmp_path / "roofline.json").read_text())
    assert found["rates"]["bandwidth"] == 4.3e12
    assert set(found["rates"]["flops"].values()) == {7.9e14}
    assert "4300 GB/s" in process.stdout


def test_profile_in_small(tmp_path, capsys):
    small = ("--arch", "resnet8", "--batch", "2", "--size", "32", "--steps", "1", "--top", "3")
    benchmark.main(["profile", *small, "--json", str(tmp_path / "profile.json")])
    found = json.loads((tmp_path / "profile.json").read_text())
    assert found["settings"]["arch"] == "resnet8"
    assert found["rows"]
    assert "conv fprop" in capsys.readouterr().out
