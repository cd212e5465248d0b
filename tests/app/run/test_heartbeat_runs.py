"""The heartbeat of whole runs: its states, their ends, and that nothing else in the results is another for it."""

import json
import os
import signal

import pytest

from mixprec.app.run import lock
from mixprec.base import files
from mixprec.training import heartbeat
from mixprec.training.heartbeat import Heartbeat
from mixprec.training.pictures import Pictures
from tests.app.run import finished_run
from tests.app.run.test_failures import Fails, _exhaust, fail  # noqa: F401
from tests.app.run.test_train_signals import (  # noqa: F401
    CALLS,
    EVALUATIONS,
    _assert_same,
    _files,
    _start,
    train,
    whole,
    work,
)
from tests.cases import first


def _status(folder):
    return json.loads((folder / "status.json").read_text())


def _said(folder):
    status = _status(folder)
    return status["state"], status["iteration"], status["epoch"]


@pytest.fixture
def written(monkeypatch):
    """All heartbeats that runs want to write, as pairs of state and iteration, however soon they come."""
    found, write = [], Heartbeat._write

    def watched(self, state):
        found.append((state, self._iteration))
        write(self, state)

    monkeypatch.setattr(Heartbeat, "_write", watched)
    monkeypatch.setattr(heartbeat, "_SECONDS", 0)
    return found


def test_a_run_that_was_left_alone(whole):  # noqa: F811
    status = _status(whole)
    assert _said(whole) == ("done", 18, 3.0)
    assert (status["epochs"], status["iterations"], status["seconds_left"]) == (3, 18, 0)
    assert (status["pid"], status["start"]) == (os.getpid(), lock.start_of(os.getpid()))
    assert status["elapsed_time"] >= json.loads((whole / "log.jsonl").read_text().splitlines()[-1])["elapsed_time"]
    assert not [name for name in os.listdir(whole) if name.startswith(files.TEMPORARY)]


def test_each_step_and_each_batch_of_an_evaluation_is_a_heartbeat(train, work, written):  # noqa: F811
    assert train("--out", "beats") == 0
    expected, iteration = [("training", 0)], 0
    for call in CALLS:
        iteration += call == "step"
        expected.append(("training" if call == "step" else "evaluating", iteration))
    assert written == [*expected, ("done", 18)]


def test_a_run_that_goes_on_says_so_at_once(train, work, whole, written):  # noqa: F811
    """Stopped in its evaluation, with which it then begins."""
    assert train("--out", "beat-again", place=EVALUATIONS[0]) == 0
    assert written[-3:] == [("training", 6), ("evaluating", 6), ("stopped", 6)]
    del written[:]
    assert train("--out", "beat-again", "--resume", "auto") == 0
    assert written[:4] == [("training", 6), ("training", 6), ("evaluating", 6), ("evaluating", 6)]
    assert written[-1] == ("done", 18)


def _divide():
    raise ZeroDivisionError("a fault")


def _interrupt():
    os.kill(os.getpid(), signal.SIGINT)


ENDS = [(_exhaust, EVALUATIONS[0], 1, "failed"), (_divide, 5, None, "failed"), (_interrupt, 5, 130, "stopped")]


@pytest.mark.slow
@pytest.mark.parametrize(("then", "call", "code", "state"), ENDS)
def test_a_run_that_ends_by_an_exception(fail, tmp_path, then, call, code, state):  # noqa: F811
    if code is None:
        with pytest.raises(ZeroDivisionError):
            fail(then, call=call)
    else:
        assert fail(then, call=call)[0] == code
    # A step counts when it has come to its end.
    iteration = CALLS[:call].count("step") - (CALLS[call - 1] == "step")
    assert _said(tmp_path / "out") == (state, iteration, pytest.approx(min(iteration * 4 / 22, 1)))
    assert fail(None, call=None) == (0, "")
    assert _said(tmp_path / "out") == ("done", 18, 3.0)


def test_a_run_that_diverges_has_failed(train, work, capsys):  # noqa: F811
    assert train("--out", "beat-diverged", "--set", "loss_scale.patience=2") == 1
    assert "overflow" in capsys.readouterr().err
    assert _said(work / "beat-diverged")[:2] == ("failed", 1)


@pytest.mark.parametrize("name", first(1, ["model.npz", "log.jsonl"]))
def test_a_file_that_cannot_be_written_has_failed_the_run_and_a_heartbeat_has_not(
    train,  # noqa: F811
    work,  # noqa: F811
    monkeypatch,
    capsys,
    name,
):
    replace = os.replace

    def full(source, target):
        if os.path.basename(target) == name:
            raise OSError(28, "No space left on device", target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    out = work / f"beat-full-{name}"
    assert train("--out", out.name) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("No space left on device; --resume auto goes on from the last snapshot")
    assert _status(out)["state"] == "failed"


def test_a_run_that_cannot_write_its_heartbeat_is_the_same(train, work, whole, monkeypatch, capsys):  # noqa: F811
    replace = os.replace

    def full(source, target):
        if os.path.basename(target) == "status.json":
            raise OSError(28, "No space left on device", target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    assert train("--out", "beat-none") == 0
    assert capsys.readouterr().err == ""
    assert _files(work / "beat-none") == _files(whole) - {"status.json"}
    _assert_same(work / "beat-none", whole)


def test_a_run_that_starts_afresh_in_the_folder_of_a_killed_one_removes_its_heartbeat(train, work, monkeypatch):  # noqa: F811
    """It was killed before its first snapshot; and now the disk is full."""
    out = work / "beat-fresh"
    out.mkdir()
    (out / "config.yaml").touch()
    (out / "status.json").write_text('{"state": "training", "pid": 1}')
    monkeypatch.setattr(Heartbeat, "_write", lambda self, state: None)
    assert train("--out", out.name, "--resume", "auto") == 0
    assert not (out / "status.json").exists()


@pytest.mark.slow
def test_the_numbers_of_gradients_of_a_resumed_run_are_those_of_one_left_alone(train, work, monkeypatch):  # noqa: F811
    """Stopped in a step without a line, and in an evaluation whose step has one; and killed after later lines."""
    monkeypatch.setattr(Pictures, "draw", lambda self, write: None)
    settings = ("--set", "log.gradient_histogram=2 iterations")
    assert train("--out", "lines", *settings) == 0
    expected = (work / "lines" / "gradients.jsonl").read_bytes()
    entries = [json.loads(line) for line in expected.splitlines()]
    assert [entry["iteration"] for entry in entries] == list(range(2, 19, 2))
    assert [set(entry["layers"]) for entry in entries] == 9 * [
        {"/predictor/conv", "/predictor/norm", "/predictor/linear"}
    ]
    scales = {entry["iteration"]: entry["loss_scale"] for entry in finished_run.log(work / "lines")}
    assert all(entry["loss_scale"] == scales.get(entry["iteration"], entry["loss_scale"]) for entry in entries)
    for place in (5, EVALUATIONS[0], 3):
        assert train("--out", "lines-again", "--resume", "auto", *settings, place=place) == 0
    with open(work / "lines-again" / "gradients.jsonl", "a") as file:
        file.write('{"iteration": 16}\n{"iter')
    assert train("--out", "lines-again", "--resume", "auto", *settings) == 0
    assert (work / "lines-again" / "gradients.jsonl").read_bytes() == expected
