"""Training goes on when standard output or error cannot be written: what it leaves is what a run left alone leaves."""

import errno
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mixprec.training import console
from mixprec.training.plots import Plots
from tests import ROOT
from tests.app.run.signalling_network import Tiny
from tests.app.run.test_train_signals import _assert_same, train, whole, work  # noqa: F401
from tests.cases import first

BROKEN, FULL = os.strerror(errno.EPIPE), os.strerror(errno.ENOSPC)
# Of redirections of a shell.
REASONS = {"| head -7": BROKEN, ">&-": "it is closed"}
STATES = ["| head -7", "<&- >&- 2>&-", ">/dev/full 2>&1", ">&-"]


def _is_done(folder, expected):
    _assert_same(folder, expected)
    assert json.loads((folder / "status.json").read_text())["state"] == "done"


@pytest.mark.parametrize(("attribute", "name", "other"), [("stdout", "output", "err"), ("stderr", "error", "out")])
@pytest.mark.parametrize("kind", ["full", "none"])
def test_a_run_with_a_stream_that_cannot_be_written(train, whole, monkeypatch, capsys, kind, attribute, name, other):  # noqa: F811
    out = whole.parent / f"{kind}-{attribute}"
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, attribute, full if kind == "full" else None)
        assert train("--out", out.name) == 0
        monkeypatch.undo()
    _is_done(out, whole)
    told = [line for line in getattr(capsys.readouterr(), other).splitlines() if "training goes on" in line]
    reason = FULL if kind == "full" else "it is closed"
    line = f"standard {name}: {reason}; training goes on, and its log is {out.name}/log.jsonl"
    assert told == [line] * (attribute == "stdout")  # on standard error a run that goes well says nothing


def test_a_reader_that_goes_away_in_the_middle(train, whole, monkeypatch, capsys):  # noqa: F811
    reader, writer = os.pipe()
    out, lines = whole.parent / "unread", []

    def leave(plots, trainer):
        if not lines:
            lines.extend(os.read(reader, 1 << 16).decode().splitlines())
            os.close(reader)

    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(Plots, "__call__", leave)
        assert train("--out", out.name) == 0
        monkeypatch.undo()
    assert lines[-1].startswith("0  ")  # the first of the log
    _is_done(out, whole)
    line = f"standard output: {BROKEN}; training goes on, and its log is {out.name}/log.jsonl\n"
    assert capsys.readouterr().err == line


def test_a_run_that_fails_keeps_its_exit_code_and_its_status(train, whole, monkeypatch):  # noqa: F811
    def fail():
        raise MemoryError("no room")

    monkeypatch.setattr(Tiny, "then", staticmethod(fail))
    out = whole.parent / "failed"
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "stderr", full)
        assert train("--out", out.name, place=9) == 1
        monkeypatch.undo()
    assert json.loads((out / "status.json").read_text())["state"] == "failed"


@pytest.mark.parametrize("state", first(0, STATES, 2))
def test_a_training_process(train, whole, tmp_path, state):  # noqa: F811
    program = (
        "import sys; from mixprec.base import standard_streams; standard_streams.guard()\n"
        "from mixprec.app.commands import train as command; from mixprec.training.plots import Plots\n"
        "from tests.app.run.signalling_network import Tiny\n"
        "Plots.__call__ = lambda self, trainer: None\n"
        "sys.exit(standard_streams.run(lambda: command.main(sys.argv[1:], {'tiny': Tiny})))"
    )
    script, out = f'{{ "$@"; echo $? >{tmp_path}/code; }} {state}', tmp_path / "out"
    done = subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, "-c", program, "--config", "small.yaml", "--out", str(out)],
        cwd=whole.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(whole.parent / "cache")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (tmp_path / "code").read_text() == "0\n"
    _is_done(out, whole)
    line = f"standard output: {REASONS.get(state)}; training goes on, and its log is {out}/log.jsonl\n"
    assert done.stderr == (line if state in REASONS else "")


def test_extensions_in_a_program_without_standard_streams(monkeypatch):
    """As of a service: the bar stays away, and the table has nowhere to go."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    trainer = SimpleNamespace(updater=SimpleNamespace(epoch_detail=0.5), observation={})
    bar = console.ProgressBar(4, 1)
    bar.initialize(trainer)
    bar(trainer)
    bar.finalize()
    lines = console.Lines()
    lines.write("epoch\n")
    lines.flush()
