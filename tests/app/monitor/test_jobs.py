"""Runs that are started and stopped from the pages."""

import json
import os
import pathlib
import platform
import signal
import subprocess
import sys

import pytest

from mixprec.app.monitor.jobs import JobError, Jobs
from mixprec.app.monitor.runs import Runs
from mixprec.base.process_limits import start_of
from tests.app.monitor.made_runs import make_run


@pytest.fixture
def commands(monkeypatch):
    """What would have been started."""
    found = []

    class Process:
        def __init__(self, command, **keywords):
            found.append(command)
            keywords["stdout"].write(b"printed <b>\xff\n")

        def poll(self):
            return None if len(found) == 1 else 2

    monkeypatch.setattr(subprocess, "Popen", Process)
    return found


def test_the_command_of_a_job(tmp_path, commands):
    jobs = Jobs(tmp_path)
    jobs.start("/configs/digits.yaml", "jobs/one", [" training.epochs=3 ", "", "optimizer.lr=$(rm -rf /)"])
    assert commands == [
        [sys.executable, "-m", "mixprec", "train", "--config", "/configs/digits.yaml", "--out",
         os.path.join(os.path.realpath(tmp_path), "jobs", "one"),
         "--set", "training.epochs=3", "--set", "optimizer.lr=$(rm -rf /)"]
    ]  # fmt: skip
    assert jobs.rows() == [("jobs/one", "runs", "printed <b>\N{REPLACEMENT CHARACTER}\n")]
    jobs.start("x", "two", [])
    assert [(name, state) for name, state, _ in jobs.rows()] == [
        ("two", "ended with code 2"),
        ("jobs/one", "ended with code 2"),
    ]


@pytest.mark.parametrize(
    "name", ["", "..", "a/../b", "/etc", "a//b", ".hidden", "-x", "a b", "a/b/c/d/e", "a\n", "x" * 101]
)
def test_names_that_are_none(tmp_path, commands, name):
    with pytest.raises(JobError, match="not a name of a run; allowed"):
        Jobs(tmp_path).start("x", name, [])
    assert commands == []


def test_names_that_are_taken_or_lead_out(tmp_path, commands):
    (tmp_path / "results").mkdir()
    make_run(tmp_path / "results" / "a")
    (tmp_path / "results" / "out").symlink_to("/tmp")
    for name in ("a", "out", "out/new"):
        with pytest.raises(JobError, match="give another name"):
            Jobs(tmp_path / "results").start("x", name, [])
    assert commands == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, commands):
    (tmp_path / ".jobs").write_text("")
    with pytest.raises(JobError, match="exists"):
        Jobs(tmp_path).start("x", "a", [])


def test_a_run_is_stopped_by_sigterm_and_only_its_own_process(tmp_path):
    locks = [str(tmp_path.resolve() / name / "run.lock") for name in ("mine", "ended")]
    holds = f"locks = [open(path, 'w') for path in {locks}]; print(flush=True); input()"
    (tmp_path / "mine").mkdir()
    (tmp_path / "ended").mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", holds], **pipes) as process:
        process.stdout.readline()
        status = {"state": "training", "pid": process.pid, "host": platform.node(), "start": start_of(process.pid)}
        make_run(tmp_path / "mine", status=status)
        make_run(tmp_path / "ended", status={**status, "start": 1})
        make_run(tmp_path / "elsewhere", status={**status, "host": "another"})
        make_run(tmp_path / "claims it", status=status)
        make_run(tmp_path / "none")
        runs, jobs = Runs(tmp_path), Jobs(tmp_path)
        runs.refresh()
        for name in ("ended", "none", "elsewhere", "claims it"):
            with pytest.raises(JobError, match="none of its processes runs on this machine"):
                jobs.stop(runs.get(name))
        assert process.poll() is None
        jobs.stop(runs.get("mine"))
        assert process.wait(30) == -signal.SIGTERM
    assert json.loads((tmp_path / "mine" / "status.json").read_text()) == status


def test_a_run_is_cloned_by_a_copy_of_its_config_which_is_no_link(tmp_path, commands):
    root = tmp_path.resolve() / "results"
    config = make_run(root / "a") / "config.yaml"
    jobs = Jobs(root)
    jobs.start(str(config), "b", [])
    copy = commands[0][5]
    assert os.path.dirname(copy) == str(root / ".jobs")
    assert pathlib.Path(copy).read_text() == config.read_text()
    (tmp_path / "secret").write_text("secret: 1")
    config.unlink()
    config.symlink_to(tmp_path / "secret")
    with pytest.raises(JobError, match=r"config\.yaml: a link, which is not followed"):
        jobs.start(str(config), "c", [])
    (root / "a").rename(tmp_path / "moved")
    (root / "a").symlink_to(tmp_path / "moved")
    with pytest.raises(JobError, match="Not a directory"):
        jobs.start(str(config), "d", [])
    assert len(commands) == 1


def test_a_clone_has_no_base(tmp_path, commands):
    root = tmp_path.resolve()
    config = make_run(root / "a", config="base: /etc/passwd\n") / "config.yaml"
    with pytest.raises(JobError, match="has a 'base'; the config of a run has all keys, and no base"):
        Jobs(root).start(str(config), "b", [])
    assert commands == []


def test_what_jobs_print_goes_and_comes_through_no_link(tmp_path, commands):
    (tmp_path / "results").mkdir()
    (tmp_path / "elsewhere").mkdir()
    jobs = Jobs(tmp_path / "results")
    jobs.start("x", "one", [])
    ((printed,),) = [os.listdir(tmp_path / "results" / ".jobs")]
    (tmp_path / "elsewhere" / printed).write_text("secret")
    (tmp_path / "results" / ".jobs").rename(tmp_path / "moved")
    (tmp_path / "results" / ".jobs").symlink_to(tmp_path / "elsewhere")
    assert "secret" not in jobs.rows()[0][2]
    with pytest.raises(JobError, match="Not a directory"):
        jobs.start("x", "two", [])
    assert os.listdir(tmp_path / "elsewhere") == [printed]
