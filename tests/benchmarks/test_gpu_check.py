"""benchmarks.gpu_check: stages that fail, hang and crash within a budget, and what is kept of them."""

import errno
import json
import os
import pathlib
import signal
import sys
import time
import types

import pytest

from benchmarks.gpu_check import archive, check, group, home, quotes, stage_summary
from benchmarks.gpu_check import stages as all_stages
from benchmarks.gpu_check.stages import Stage
from mixprec import files
from tests import ROOT

MACHINE = {"date": "2026-11-23T00:00:00+00:00", "mixprec": None, "commit": None, "python": "3.12.3", "cpu": "a CPU"}
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"
FOUND = """echo '{"device": "@cupy:0", "reason": "GPU 0"}'"""


def shell(name, script, limit=60.0, **keywords):
    keywords = {"needs_device": False, **keywords}
    return Stage(name, ("sh", "-c", script), limit, **keywords)


@pytest.fixture
def run(tmp_path):
    """Runs stages; returns their results by name, and the printed lines. ``run.out`` is the folder of the results."""

    def run(*stages, asking=FOUND, budget=600.0, root=tmp_path, former=None, members=None, environment=()):
        printed = []
        asking = asking if isinstance(asking, Stage) else shell("device", asking)
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        found = check.Check(
            list(stages),
            asking,
            time.monotonic() + budget,
            root=root,
            scratch=scratch,
            environment=dict(environment),
            keep=home.Home(run.out, scratch, MACHINE, members or {}, printed.append).keep,
            interruption=group.Interruption(),
            say=printed.append,
            former=former or {},
            date=MACHINE["date"],
            grace=0.3,
        ).run()
        return {result.name: result for result in found}, printed

    run.out, run.scratch = tmp_path / "out", tmp_path / "scratch"
    return run


def members_of(run):
    return archive.unpacked(run.out / archive.NAME)


def is_gone(number):
    """Whether a process has ended; one that is not waited for has."""
    try:
        text = pathlib.Path("/proc", str(number), "stat").read_text()
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def test_stages_survive_each_other(run, tmp_path):
    results, printed = run(
        shell("fails", "echo first; printf 'half a line'; exit 3"),
        shell("hangs", f"({STUBBORN}) & echo $! > child; echo begun; {STUBBORN}", limit=2.0),
        shell("crashes", "kill -SEGV $$"),
        shell("bytes", "printf 'bad \\377 byte\\n\\n'", quote=quotes.last_line),
        Stage("absent", (str(tmp_path / "no-program"),), 60.0, needs_device=False),
        shell("good", "echo fine", quote=quotes.last_line),
    )
    assert {name: (result.state, result.status) for name, result in results.items()} == {
        "fails": ("failed", 3),
        "hangs": ("timed out", -signal.SIGKILL),
        "crashes": ("failed", -signal.SIGSEGV),
        "bytes": ("ok", 0),
        "absent": ("failed", None),
        "good": ("ok", 0),
    }
    assert results["fails"].note == "exit status 3; last line: half a line"
    assert results["hangs"].note == "after 2 s; last line: begun"
    assert results["crashes"].note == "ended by SIGSEGV; last line: no output"
    assert results["bytes"].quotes == ["bad \N{REPLACEMENT CHARACTER} byte"]
    assert results["absent"].note.startswith("cannot be started: ")
    assert results["good"].quotes == ["fine"]
    assert is_gone((tmp_path / "child").read_text().strip())
    assert members_of(run)["fails.log"] == b"first\nhalf a line"
    assert "hangs: at most 2 s ..." in printed
    record = json.loads(members_of(run)["summary.json"])
    assert record["complete"] is True
    assert [stage["state"] for stage in record["stages"]] == [result.state for result in results.values()]


def test_what_a_stage_leaves_running_is_ended(run, tmp_path):
    results, _ = run(shell("leaves", f"({STUBBORN}) & echo $! > child"))
    assert results["leaves"].state == "ok"
    assert is_gone((tmp_path / "child").read_text().strip())


def test_a_stage_without_its_results_has_failed_and_its_last_lines_are_quoted(run):
    def quote(folder, lines):
        raise ValueError("no snapshot")

    results, _ = run(shell("first", "seq 9", quote=quote), shell("second", "exit 1", quote=quote))
    assert (results["first"].state, results["first"].note) == ("failed", "ended well, but: ValueError: no snapshot")
    assert results["first"].quotes == list("456789")
    assert results["second"].note == "exit status 1; last line: no output"


CPU = shell("cpu", "true")
GPU = shell("gpu", "true", needs_device=True)


@pytest.mark.parametrize(
    ("script", "state", "others", "note"),
    [
        (FOUND, "ok", "ok", "GPU 0"),
        ("""echo '{"device": null, "reason": "no driver"}'""", "no device", "no device", "no driver"),
        ("kill -SEGV $$", "failed", "skipped", "ended by SIGSEGV; last line: no output"),
        (STUBBORN, "timed out", "skipped", "after 0.5 s; last line: no output"),
        ("echo '{'", "failed", "skipped", "ended well, but: JSONDecodeError: "),
        ("true", "failed", "skipped", "ended well, but: IndexError: "),
    ],
)
def test_a_device_is_asked_for_once(run, script, state, others, note):
    results, _ = run(CPU, GPU, asking=shell("device", script, limit=0.5 if note[:5] == "after" else 60))
    assert {name: result.state for name, result in results.items()} == {"device": state, "cpu": "ok", "gpu": others}
    assert results["device"].note.startswith(note)
    expected = {"ok": "", "no device": note, "skipped": f"whether there is a device is not known: device: {state}"}
    assert results["gpu"].note == expected[others]


def test_no_gpu_is_asked_for_if_no_stage_needs_one(run):
    results, _ = run(CPU, asking="exit 1")
    assert {name: result.state for name, result in results.items()} == {"cpu": "ok"}
    former = {name: stage_summary.Result(name, [], 1.0, "ok", date="before") for name in ("device", "gpu")}
    results, _ = run(GPU, asking="exit 1", former=former)
    assert {name: result.state for name, result in results.items()} == {"gpu": "ok"}
    results, _ = run(GPU, shell("new", "true", needs_device=True), asking="exit 1", former=former)
    assert {name: result.state for name, result in results.items()} == {
        "device": "failed",
        "gpu": "ok",
        "new": "skipped",
    }


# The budget


def test_a_stage_gets_what_is_left_and_is_not_begun_if_that_is_too_little(run):
    reserve = 0.3 + group.GONE
    results, printed = run(
        shell("long", STUBBORN, limit=600.0),
        shell("least", "true", least=2.0),
        shell("none", "true"),
        budget=reserve + 1.0,
    )
    assert results["long"].state == "timed out"
    assert 0.5 < results["long"].limit <= 1.0
    assert results["least"].state == "not begun"
    assert results["least"].note.endswith(" s were left, it needs at least 2")
    assert not results["least"].bad
    assert any(line.startswith("least: not begun: ") for line in printed)


def test_stages_that_share_a_limit(run):
    smoke = {"together": ("smoke", 1.0), "least": 0.5, "limit": 0.8}
    results, _ = run(shell("a", STUBBORN, **smoke), shell("b", "true", **smoke), shell("c", "true", limit=0.8))
    assert {name: result.state for name, result in results.items()} == {"a": "timed out", "b": "not begun", "c": "ok"}


# Going on


def test_a_second_check_goes_on_with_what_did_not_go_well(run, tmp_path):
    script = "echo $0 >> ran; echo '{}' > scratch/$0/$0.json"
    good, bad = (
        Stage(name, ("sh", "-c", f"{script}{end}", name), 60.0, quotes.last_line, needs_device=False)
        for name, end in (("good", ""), ("bad", "; exit 1"))
    )
    run(good, bad)
    members = members_of(run)
    assert {"good/good.json", "good.log", "bad/bad.json", "bad.log"} < set(members)
    former = stage_summary.read(members["summary.json"].decode())
    assert list(former) == ["good"]
    archive.write_files(run.scratch, {name: data for name, data in members.items() if "/" in name})
    results, printed = run(good, bad, former=former, members=members)
    assert (tmp_path / "ran").read_text().split() == ["good", "bad", "bad"]
    assert f"good: ok, in the check of {MACHINE['date']}" in printed
    assert {name: result.state for name, result in results.items()} == {"good": "ok", "bad": "failed"}
    assert set(members_of(run)) == set(members)


# A GPU whose kernels hang, whose second stage dies, and whose disk is full

CUPY = """
import os, time

def zeros(size):
    if os.environ["STAGE"] == "second":
        os.kill(os.getpid(), 11)
    time.sleep(600)
"""


def test_kernels_that_hang_and_a_stage_that_dies(run, tmp_path):
    (tmp_path / "driver" / "cupy").mkdir(parents=True)
    (tmp_path / "driver" / "cupy" / "__init__.py").write_text(CUPY)
    program = "import cupy; print('begun', flush=True); cupy.zeros(1)"
    stages = [
        shell(name, f'STAGE={name} exec {sys.executable} -c "{program}"', limit=limit, needs_device=True)
        for name, limit in (("first", 4.0), ("second", 60.0), ("third", 4.0))
    ]
    environment = {"PYTHONPATH": str(tmp_path / "driver")}
    results, _ = run(*stages, shell("last", "echo fine", quote=quotes.last_line), environment=environment)
    notes = {name: (result.state, result.note) for name, result in results.items()}
    assert notes["first"] == notes["third"] == ("timed out", "after 4 s; last line: begun")
    assert notes["second"][0] == "failed"
    assert notes["second"][1].startswith("ended by SIGSEGV; last line: ")
    assert results["last"].quotes == ["fine"]
    assert b"begun" in members_of(run)["third.log"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_what_cannot_be_written_is_said_once_and_printed(run, monkeypatch, error):
    def full(path):
        raise OSError(error, os.strerror(error), path)

    monkeypatch.setattr(files, "replacing", full)
    results, printed = run(shell("one", "echo 4711", quote=quotes.last_line), shell("two", "true"))
    assert {result.state for result in results.values()} == {"ok"}
    assert not run.out.exists() or not list(run.out.iterdir())
    assert "    4711" in printed
    said = [line for line in printed if line.startswith("check_gpu: ")]
    assert said == [
        f"check_gpu: {run.out / name} cannot be written: {os.strerror(error)}; the check goes on, and prints all"
        for name in (stage_summary.JSON, stage_summary.TEXT, archive.NAME)
    ]


# Processes


TRAINING = "trap 'echo stopped; exit 0' TERM; echo begun; {}; while :; do sleep 0.05; done"


def test_a_stage_without_an_end_is_stopped_some_time_after_it_has_begun(run, tmp_path):
    stop = group.Stop(tmp_path / "begun", 0.2)
    results, _ = run(
        shell("begins", TRAINING.format("touch begun"), stop=stop, quote=quotes.last_line),
        shell("never", TRAINING.format(":"), stop=group.Stop(tmp_path / "never", 0.0), limit=2.0),
    )
    assert (results["begins"].state, results["begins"].quotes) == ("ok", ["stopped"])
    assert (results["never"].state, results["never"].status) == ("timed out", 0)  # by the SIGTERM at its limit


def test_a_second_signal_does_not_wait(tmp_path, monkeypatch):
    """Time stands still, so that nothing but the second signal ends what ignores SIGTERM."""
    interruption, calls = group.Interruption(), []
    real, ready = group.time.sleep, tmp_path / "ready"

    def sleep(seconds):
        calls.append(seconds)
        assert len(calls) < 1000
        if ready.exists() and len(interruption.signals) < 2:
            interruption.signals.append(signal.SIGINT)
        real(seconds)

    monkeypatch.setattr(group, "time", types.SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    command = ["sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done"]
    ended = group.run(command, group.Output(), folder=tmp_path, limit=1.0, interruption=interruption)
    assert ended == group.Ended(-signal.SIGKILL, 0.0, timed_out=False, interrupted=True)


def test_an_ignored_sighup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with group.Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.signals == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("sizes", [[10], [1 << 19, 1], [(1 << 20) + 7], [1000] * 2000, [3 << 20]])
def test_output_keeps_both_ends(sizes):
    data = os.urandom(1 << 10) * (sum(sizes) // (1 << 10) + 1)
    data, output, place = data[: sum(sizes)], group.Output(), 0
    for size in sizes:
        output.add(data[place : place + size])
        place += size
    kept = output.bytes()
    if len(data) <= 1 << 20:
        assert kept == data
    else:
        half = 1 << 19
        assert kept == data[:half] + f"\n... {len(data) - 2 * half} bytes are left out ...\n".encode() + data[-half:]


def test_a_stage_that_prints_without_an_end_is_not_held_up(run):
    results, _ = run(shell("loud", "yes | head -c 5000000; echo end", quote=quotes.last_line))
    assert results["loud"].quotes == ["end"]
    assert len(members_of(run)["loud.log"]) < (1 << 20) + 100


def test_patterns_choose_stages():
    def names(*patterns):
        return [stage.name for stage in check.chosen(stages, patterns, former)]

    stages, former = all_stages.stages(ROOT, ROOT), ()
    assert names("smoke-sums", "environment") == ["environment", "smoke-sums"]
    assert names("tuned-*") == ["tuned-256", "tuned-32"]
    with pytest.raises(ValueError, match="found 'x', expected one of environment, smoke-kernel, "):
        names("tuned-*", "x")
    former = {"profile": None}  # whose results stay in the archive
    assert names("tuned-*") == ["profile", "tuned-256", "tuned-32"]
    assert names() == [stage.name for stage in stages]
