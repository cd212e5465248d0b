"""The heartbeat of a run, status.json: what it says, how often, and that training does not depend on it."""

import builtins
import errno
import json
import os
import platform
import random
import tempfile
import types

import numpy as np
import pytest

from mixprec.app.run import lock
from mixprec.base import files
from mixprec.training.heartbeat import Heartbeat
from mixprec.training.snapshots import WriteError
from mixprec.training.stopping import Stopped

KEYS = ["state", "iteration", "epoch", "epochs", "iterations", "seconds_left", "elapsed_time", "time"]
KEYS += ["pid", "host", "start"]


class Run:
    """A heartbeat of 3 epochs of 10 steps, in a trainer in which nothing happens, and a clock that is set by hand."""

    def __init__(self, out, iteration=0, epoch=0.0, epochs=3, steps_per_epoch=10):
        self.now, self.out, self.elapsed_time = 1000.0, str(out), 0.0
        self.updater = types.SimpleNamespace(iteration=iteration, epoch_detail=epoch)
        steps = types.SimpleNamespace(until=lambda epoch: epoch * steps_per_epoch)
        self.heartbeat = Heartbeat(epochs, steps, clock=lambda: self.now)

    def begin(self):
        self.heartbeat.initialize(self)
        return self

    def step(self, seconds):
        self.now += seconds
        self.elapsed_time += seconds
        self.updater.iteration += 1
        self.updater.epoch_detail = self.updater.iteration / 10
        self.heartbeat(self)

    def batch(self, seconds):
        self.now += seconds
        self.heartbeat.evaluating()

    @property
    def status(self):
        with open(os.path.join(self.out, "status.json")) as file:
            return json.load(file)


def _said(run, *names):
    return tuple(run.status[name] for name in names)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path).begin()


def test_what_it_says_at_the_beginning(run, tmp_path):
    status = run.status
    assert list(status) == KEYS
    assert status.pop("time") > 1.7e9
    assert status == (
        {"state": "training", "iteration": 0, "epoch": 0.0, "epochs": 3, "iterations": 30, "seconds_left": None}
        | {"elapsed_time": 0.0, "pid": os.getpid(), "host": platform.node(), "start": lock.start_of(os.getpid())}
    )
    assert os.listdir(tmp_path) == ["status.json"]
    text = (tmp_path / "status.json").read_text()
    assert (text[-1], text.count("\n")) == ("\n", 1)


def test_it_is_written_once_a_second_at_most(run, monkeypatch):
    written = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: [written.append(run.now), replace(*paths)])
    for _ in range(12):
        run.step(0.25)
    for _ in range(12):
        run.batch(0.25)
    assert written == [1001, 1002, 1003, 1004, 1005, 1006]
    run.step(7)
    assert written[6:] == [1013]


def test_steps_and_batches_of_an_evaluation(run):
    run.step(2)
    assert _said(run, "state", "iteration", "epoch", "elapsed_time") == ("training", 1, 0.1, 2.0)
    run.batch(2)
    assert _said(run, "state", "iteration") == ("evaluating", 1)
    run.batch(0.5)
    run.step(0.25)
    assert _said(run, "state", "iteration") == ("evaluating", 1), "three quarters of a second are none"
    run.step(0.25)
    assert _said(run, "state", "iteration") == ("training", 3)


def test_the_remaining_time_follows_from_the_rate_since_the_first_step(run):
    run.step(100)  # which compiles kernels, or measures plans
    assert run.status["seconds_left"] is None
    run.step(2)
    assert run.status["seconds_left"] == pytest.approx(28 * 2)
    run.step(4)
    assert run.status["seconds_left"] == pytest.approx(27 * 3)
    run.batch(6)  # takes its part of the rate
    assert run.status["seconds_left"] == pytest.approx(27 * 6)


def test_the_remaining_time_is_that_of_this_process(tmp_path):
    run = Run(tmp_path, iteration=20, epoch=2.0).begin()
    assert run.status["seconds_left"] is None
    run.step(1)
    run.step(3)
    assert run.status["seconds_left"] == pytest.approx(8 * 3)
    for _ in range(8):
        run.step(3)
    assert run.status["seconds_left"] == 0


ITERATIONS = [
    (0, 0, 18),
    (1, 4 / 22, 18),  # of 6 steps the last has 2 images
    (5, 20 / 22, 18),
    (17, 2 + 20 / 22, 18),
    (18, 3, 18),
    (3, 0.25, 20),  # with more images in a step than before: 12 of these made a quarter as 3
    (19, 3.1, 19),
]


@pytest.mark.parametrize(("iteration", "epoch", "expected"), ITERATIONS)
def test_the_number_of_iterations_in_all(tmp_path, iteration, epoch, expected):
    run = Run(tmp_path, iteration, epoch, steps_per_epoch=6).begin()
    assert run.status["iterations"] == expected


# The end


ENDS = [
    (None, "done"),
    (Stopped(), "stopped"),
    (KeyboardInterrupt(), "stopped"),
    (OSError(errno.ENOSPC, "No space left on device"), "failed"),
    (SystemExit(3), "failed"),
    (ZeroDivisionError(), "failed"),
]


@pytest.mark.parametrize(("error", "state"), ENDS, ids=repr)
def test_how_it_ended(run, error, state):
    """At once, also within the second."""
    run.step(2)
    run.step(2)
    run.step(0.1)
    if error is None:
        with run.heartbeat.watching():
            pass
    else:
        with pytest.raises(type(error)), run.heartbeat.watching():
            raise error
    assert _said(run, "state", "iteration", "seconds_left") == (state, 3, 0 if state == "done" else None)


def test_a_stop_without_its_snapshot_has_failed(run):
    stopped = Stopped()
    stopped.failure = WriteError("full")
    with pytest.raises(Stopped), run.heartbeat.watching():
        raise stopped
    assert run.status["state"] == "failed"


def test_a_step_that_fails_does_not_count(run):
    """Its images have left the loader."""
    run.step(2)
    run.updater.epoch_detail = 0.2
    with pytest.raises(ZeroDivisionError), run.heartbeat.watching():
        raise ZeroDivisionError
    assert _said(run, "iteration", "epoch") == (1, 0.1)


def test_a_run_that_has_not_begun_says_nothing(tmp_path):
    run = Run(tmp_path)
    run.batch(1)
    with pytest.raises(ZeroDivisionError), run.heartbeat.watching():
        raise ZeroDivisionError
    with run.heartbeat.watching():
        pass
    assert os.listdir(tmp_path) == []


# Where it cannot be written


def _full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Full:
    """A file on a full disk: it can be opened."""

    write = staticmethod(_full)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


FULL = [(os, "replace", _full), (builtins, "open", lambda *_, **__: Full()), (tempfile, "mkstemp", _full)]


@pytest.mark.parametrize(("module", "name", "instead"), FULL, ids=["replace", "write", "mkstemp"])
def test_on_a_full_disk_there_is_none_and_training_goes_on(run, tmp_path, monkeypatch, capfd, module, name, instead):
    run.step(2)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, instead)
        run.step(2)
        run.batch(2)
        with run.heartbeat.watching():
            pass
        with pytest.raises(ZeroDivisionError), run.heartbeat.watching():
            raise ZeroDivisionError
    assert _said(run, "state", "iteration") == ("training", 1), "the last one stays"
    assert os.listdir(tmp_path) == ["status.json"]
    run.step(2)
    assert run.status["iteration"] == 3
    assert capfd.readouterr() == ("", "")


def test_a_file_that_cannot_be_replaced_or_a_folder_that_is_gone(run, tmp_path):
    (tmp_path / "status.json").unlink()
    (tmp_path / "status.json").mkdir()
    run.step(2)
    assert os.listdir(tmp_path) == ["status.json"]
    (tmp_path / "status.json").rmdir()
    tmp_path.rmdir()
    run.step(2)
    assert not tmp_path.exists()


def test_ctrl_c_while_it_is_written_leaves_no_temporary_file(run, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.step(2)
    assert os.listdir(tmp_path) == ["status.json"]


def test_it_does_not_wait_for_the_disk(run, monkeypatch):
    monkeypatch.setattr(os, "fsync", None)
    run.step(2)
    assert run.status["iteration"] == 1
    with pytest.raises(TypeError):
        files.write_text(os.path.join(run.out, "status.json"), "")


def test_it_draws_no_random_numbers(run):
    before = random.getstate(), np.random.get_state()
    run.step(2)
    assert random.getstate() == before[0]
    np.testing.assert_equal(np.random.get_state(), before[1])
