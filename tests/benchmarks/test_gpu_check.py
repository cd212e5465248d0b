"""benchmarks.gpu_check: stages that fail, hang and crash within a budget, and what is kept of them."""

import errno
import json
import os
import pathlib
import signal
import sys
import time
import types
import zipfile

import pytest

from benchmarks.gpu_check import archive, check, group, stages, summary, wheels
from benchmarks.gpu_check.stages import Stage
from mixprec.base import files
from tests.cases import first

pytestmark = pytest.mark.slow

MACHINE = {"date": "2026-11-23T00:00:00+00:00", "mixprec": None, "commit": None, "python": "3.12.3", "cpu": "a CPU"}
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"
FOUND = "echo GPU 0"


def shell(name, script, seconds=60.0, **keywords):
    return Stage(name, seconds, ("sh", "-c", script), **{"needs_device": False, **keywords})


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs stages; returns their results by name, and the printed lines. A stage may run as long as is planned."""
    monkeypatch.setattr(Stage, "limit", property(lambda stage: stage.seconds))

    def run(*wanted, device=FOUND, budget=600.0, former=None, members=None):
        printed = []
        run.scratch.mkdir(exist_ok=True)
        found = check.Check(
            list(wanted),
            time.monotonic() + budget,
            root=tmp_path,
            scratch=run.scratch,
            environment={"VARIABLE": "4711"},
            keep=archive.Home(run.out, run.scratch, MACHINE, members or {}, printed.append).keep,
            signals=[],
            say=printed.append,
            former=former or {},
            date=MACHINE["date"],
            device=device if isinstance(device, Stage) else shell("device", device),
            grace=0.3,
        ).run()
        return {result.name: result for result in found}, printed

    run.out, run.scratch = tmp_path / "out", tmp_path / "scratch"
    return run


def members_of(run):
    return archive.unpacked(run.out / archive.NAME)


def states(results):
    return {name: result.state for name, result in results.items()}


def is_gone(number):
    """Whether a process has ended; one that is not waited for has."""
    try:
        text = pathlib.Path("/proc", str(number), "stat").read_text()
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def broken(folder, lines):
    raise ValueError("no numbers")


def test_stages_survive_each_other(run, tmp_path):
    results, printed = run(
        shell("fails", "echo first; printf 'half a line'; exit 3"),
        shell("hangs", f"({STUBBORN}) & echo $! > child; echo begun; {STUBBORN}", 2.0),
        shell("leaves", f"({STUBBORN}) & echo $! > other"),
        shell("crashes", "kill -SEGV $$"),
        shell("bytes", "printf 'bad \\377 byte\\n\\n'"),
        Stage("absent", 60.0, (str(tmp_path / "no-program"),), needs_device=False),
        shell("no numbers", "seq 9", quote=broken),
        shell("loud", "echo start; yes | head -c 5000000; echo end"),
        shell("good", "echo $VARIABLE"),
    )
    found = {name: (result.state, result.status, result.note) for name, result in results.items()}
    assert found.pop("absent")[2].startswith("cannot be started: ")
    assert found == {
        "device": ("ok", 0, ""),
        "fails": ("failed", 3, "exit status 3; half a line"),
        "hangs": ("timed out", -signal.SIGKILL, "after 2 s; last line: begun"),
        "leaves": ("ok", 0, ""),
        "crashes": ("failed", -signal.SIGSEGV, "ended by SIGSEGV; no output"),
        "bytes": ("ok", 0, ""),
        "no numbers": ("failed", 0, "ended well, but: no numbers"),
        "loud": ("ok", 0, ""),
        "good": ("ok", 0, ""),
    }
    assert results["bytes"].quotes == ["bad \N{REPLACEMENT CHARACTER} byte"]
    assert results["no numbers"].quotes == list("456789")
    assert results["good"].quotes == ["4711"]
    assert all(is_gone((tmp_path / name).read_text().strip()) for name in ("child", "other"))
    members = members_of(run)
    assert members["fails.log"] == b"first\nhalf a line"
    log = members["loud.log"]  # both ends are kept
    assert (log[:8], log[-6:], len(log) < 1_100_000) == (b"start\ny\n", b"y\nend\n", True)
    assert log.count(b"... the middle is left out ...") == 1
    assert "hangs: at most 2 s ..." in printed
    record = json.loads(members["summary.json"])
    assert record["complete"] is True
    assert [stage["state"] for stage in record["stages"]] == [result.state for result in results.values()]


DEVICES = [
    (FOUND, "ok", "ok", ""),
    (f"echo no driver; exit {stages.NO_GPU}", "no device", "no device", "no driver"),
    ("kill -SEGV $$", "failed", "skipped", "ended by SIGSEGV; no output"),
    (shell("device", STUBBORN, 0.5), "timed out", "skipped", "after 0.5 s; last line: no output"),  # it hangs
]


@pytest.mark.parametrize(("device", "state", "others", "note"), DEVICES)
def test_a_device_is_asked_for_once(run, device, state, others, note):
    results, _ = run(shell("cpu", "true"), shell("gpu", "true", needs_device=True), device=device)
    assert states(results) == {"device": state, "cpu": "ok", "gpu": others}
    assert results["device"].note == note
    expected = {"ok": "", "no device": note, "skipped": f"whether there is a GPU is not known: device: {state}"}
    assert results["gpu"].note == expected[others]


def test_what_has_no_time_is_left_by_name_and_shorter_stages_run(run, monkeypatch):
    results, printed = run(shell("long", "true", 600.0), shell("short", "true", 1.0), budget=60.0)
    assert states(results) == {"device": "not begun", "long": "not begun", "short": "ok"}
    assert results["long"].note.endswith(" s were left, 600 are planned for it")
    assert not results["long"].bad
    assert any(line.startswith("long              not begun") for line in printed)
    monkeypatch.setattr(Stage, "limit", 600.0)
    results, _ = run(shell("hangs", STUBBORN, 0.1), budget=0.3 + group.GONE + 1.0)
    assert results["hangs"].state == "timed out"


def test_a_second_check_goes_on_with_what_did_not_go_well(run, tmp_path):
    script = "echo $0 >> ran; test -e scratch/$0/$0.json && echo twice; echo '{}' > scratch/$0/$0.json"
    good, bad = (
        Stage(name, 60.0, ("sh", "-c", f"{script}{end}", name), needs_device=False)
        for name, end in (("good", ""), ("bad", "; exit 1"))
    )
    run(good, bad)
    members = members_of(run)
    assert {"good/good.json", "good.log", "bad/bad.json", "bad.log"} < set(members)
    former = summary.read(members["summary.json"].decode())
    del former["device"]
    assert list(former) == ["good"]
    for path in sorted(run.scratch.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    archive.write_files(run.scratch, members)
    results, _ = run(good, bad, former=former, members=members)
    assert (tmp_path / "ran").read_text().split() == ["good", "bad", "bad"]
    assert states(results) == {"device": "ok", "good": "ok", "bad": "failed"}
    assert results["bad"].quotes == []  # what the first try has left is gone
    assert set(members_of(run)) == set(members)


def test_patterns_choose_stages(tmp_path):
    every = stages.stages(tmp_path)

    def chosen(*patterns, former=()):
        return [stage.name for stage in check.chosen(every, patterns, former)]

    assert chosen("smoke", "environment") == ["environment", "smoke"]
    assert chosen("captured-*", former=["profile-256"]) == ["captured-256", "captured-32", "profile-256"]
    assert chosen() == [stage.name for stage in every if stage.name != "talk"]
    assert chosen("talk") == ["talk"]
    with pytest.raises(ValueError, match="found 'x', expected one of environment, smoke, "):
        chosen("captured-*", "x")


# Signals


def test_a_second_signal_does_not_wait(tmp_path, monkeypatch):
    """Time stands still, so that nothing but the second signal ends what ignores SIGTERM."""
    signals, ready, real = [], tmp_path / "ready", time.sleep

    def sleep(seconds):
        if ready.exists() and len(signals) < 2:
            signals.append(signal.SIGINT)
        real(seconds)

    monkeypatch.setattr(group, "time", types.SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    command = ["sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done"]
    ended = group.run(command, folder=tmp_path, limit=1.0, signals=signals)
    assert ended == group.Ended(-signal.SIGKILL, 0.0, timed_out=False, interrupted=True, output=b"")


# The archive and the wheels


def test_what_cannot_be_written_is_said_once_and_printed(run, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(files, "replacing", full)
    results, printed = run(shell("one", "echo 4711"), shell("two", "true"))
    assert set(states(results).values()) == {"ok"}
    assert "    4711" in printed
    assert [line for line in printed if line.startswith("check_gpu: ")] == [
        f"check_gpu: {run.out / name} cannot be written: No space left on device; the check goes on, and prints all"
        for name in (summary.JSON, summary.TEXT, archive.NAME)
    ]


LOGS = [
    (2, 1, (1024, True, True)),
    (2, 10, (1024, True, False)),
    (20, 10, (128, True, False)),
    (20, 20, (16, False, False)),
]


@pytest.mark.parametrize(("logs", "found", "kept"), first(0, LOGS, 2))
def test_an_archive_is_always_small_enough(tmp_path, logs, found, kept):
    """First what is cached is left out, then the middle of logs, in the end all but logs and summaries."""
    texts = {summary.JSON: b"{}", summary.TEXT: b"text"}
    logs = {f"{number}.log": os.urandom(1 << 20) for number in range(logs)}
    made = {f"a/{number}.json": os.urandom(1 << 20) for number in range(found)}
    data = archive.packed(texts, logs, made, {"cache/x": os.urandom(4 << 20)})
    assert len(data) < 16 << 20
    (tmp_path / "packed").write_bytes(data)
    members = archive.unpacked(tmp_path / "packed")
    assert {**texts, **members} == members
    assert logs.keys() <= members.keys()
    assert (len(members["0.log"]) >> 10, members.keys() >= made.keys(), "cache/x" in members) == kept


def test_small_files_go_home_and_of_the_cache_what_there_is_room_for(run):
    """Choices of engines first, then of the rest what was there first."""
    sizes = {"cupy/a.cubin": 1, "mixprec/plans/b": 9, "mixprec/plans/a": 16, "mixprec/kernels/c": 1}
    for age, (name, size) in enumerate({**sizes, "mixprec/x.json": 3}.items()):
        path = run.scratch / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size << 20))
        os.utime(path, (age, age))
    made = "echo 1 | tee a.json deep/b.png snapshot.npz picture.jpg c.txt; head -c 3000000 /dev/zero > large.json"
    run(shell("one", f"cd scratch/one; mkdir deep; {made}"))
    small = {"one/a.json", "one/deep/b.png", "one/c.txt", "one.log", "device.log", "summary.json", "summary.txt"}
    kept = {f"cache/{name}" for name in ("mixprec/x.json", "mixprec/plans/b", "mixprec/kernels/c", "cupy/a.cubin")}
    assert set(members_of(run)) == small | kept


def test_wheels_are_unpacked_where_the_package_is_missing(tmp_path):
    ours = "cp{}{}".format(*sys.version_info)
    names = ["py3-none-any", "py2.py3-none-any", f"{ours}-{ours}-manylinux_2_17_x86_64", "cp38-abi3-any"]
    names = [f"mixprec_absent_{number}-1.0-{tags}" for number, tags in enumerate(names)]
    for name in (*names, "mixprec_odd-1.0-cp27-cp27m-any", "numpy-9.9-py3-none-any"):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as file:
            file.writestr(f"{name.partition('-')[0]}.py", "VALUE = 1\n")
    taken = [f"mixprec_absent_{number}" for number in range(4)]
    assert wheels.unpack(tmp_path, tmp_path / "site") == [*taken, f"mixprec_odd not, which is not for {ours}"]
    assert sorted(path.stem for path in (tmp_path / "site").iterdir()) == taken
    assert wheels.unpack(tmp_path / "no folder", tmp_path / "site") == []
