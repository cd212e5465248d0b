"""The listing of runs, and the state that their files tell."""

import dataclasses
import json
import os
import platform
import time

import pytest

from mixprec.app.monitor.run_folder import Run, differences
from mixprec.app.monitor.runs import Runs
from mixprec.base.process_limits import start_of
from tests.app.monitor.made_runs import make_run


def _rows(root):
    return {row.name: row for row in Runs(root).refresh()}


def test_runs_are_found_below_the_root(tmp_path):
    make_run(tmp_path / "digits" / "a")
    make_run(tmp_path / "b")
    make_run(tmp_path / "1/2/3/4")
    make_run(tmp_path / "1/2/3/too/deep")
    make_run(tmp_path / "b" / "inside of a run")
    make_run(tmp_path / ".hidden")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "circle").symlink_to(tmp_path)
    assert sorted(_rows(tmp_path)) == ["1/2/3/4", "b", "digits/a"]


def test_a_row_says_what_the_files_say(tmp_path):
    status = {"state": "done", "epoch": 3.0, "epochs": 10, "seconds_left": 0.0}
    make_run(tmp_path / "a", status=status)
    row = _rows(tmp_path)["a"]
    assert (row.state, row.arch, row.precision) == ("done", "resnet8", "float16")
    assert (row.epoch, row.epochs, row.last, row.best) == (3, 10, 0.8, 0.9)
    assert (row.speed, row.scale, row.skipped) == (103, 65536, 3)


def _alive():
    return {"pid": os.getpid(), "host": platform.node(), "start": start_of(os.getpid())}


STATES = [
    ({"state": "training", **_alive()}, "training"),
    ({"state": "evaluating", **_alive()}, "evaluating"),
    ({"state": "training", **_alive(), "start": 1}, "killed"),  # the number of the process is another one's now
    ({"state": "training", **_alive(), "pid": 2**22 + 1}, "killed"),
    ({"state": "training", "host": "another", "ago": 0}, "training"),
    ({"state": "training", "host": "another", "ago": 3600}, "silent"),
    ({"state": "training", "host": "another"}, "silent"),
    ({"state": "stopped"}, "stopped"),
    ({"state": "failed"}, "failed"),
    ({}, "unknown"),
    ([], "unknown"),
    ({"state": "training", "pid": "x", "host": platform.node()}, "killed"),
]


@pytest.mark.parametrize(("status", "expected"), STATES)
def test_the_state_follows_from_the_heartbeat(tmp_path, status, expected):
    if "ago" in status:
        status = {**status, "time": time.time() - status["ago"]}
    make_run(tmp_path / "a", status=status)
    assert _rows(tmp_path)["a"].state == expected


def test_without_heartbeat_weights_mean_that_it_is_done(tmp_path):
    (make_run(tmp_path / "a") / "model.npz").touch()
    assert _rows(tmp_path)["a"].state == "done"


@pytest.mark.parametrize(
    "config", ["", "{", "a: &x [1]\nb: *x\n", "model: 3\n", "- 1\n", "a: !!python/object:os.system x\n", "\0"]
)
def test_a_config_that_cannot_be_read_says_nothing(tmp_path, config):
    make_run(tmp_path / "a", config=config)
    assert _rows(tmp_path)["a"].arch == ""


BROKEN = [
    ("status.json", b'{"state": []}'),
    ("status.json", b'{"state": "done", "epoch": 1' + b"0" * 400 + b"}"),
    ("status.json", b'{"state": "training", "host": "x", "time": 1' + b"0" * 400 + b"}"),
    ("status.json", b'{"state": "\\ud800", "host": "x"}'),
    ("status.json", b'{"state": "training", "pid": "../x", "start": 1, "host": "%s"}' % platform.node().encode()),
    ("config.yaml", b'a:\n  b: !!int ""\n'),
    ("config.yaml", b"training:\n  epochs: 1" + b"0" * 400),
    ("config.yaml", b"model:\n  x: 0x" + 60_000 * b"f"),
    ("config.yaml", b"{a: " * 15_000),
    ("config.yaml", b"- " * 200_000),
]


@pytest.mark.parametrize(("file", "content"), BROKEN, ids=range(10))
def test_no_file_of_a_run_hides_the_other_runs(tmp_path, file, content):
    make_run(tmp_path / "good")
    (make_run(tmp_path / "bad") / file).write_bytes(content)
    rows = _rows(tmp_path)
    assert rows["good"].best == 0.9
    json.dumps([dataclasses.astuple(row) for row in rows.values()], ensure_ascii=False).encode()
    assert isinstance(differences([Run(name, str(tmp_path / name)).config for name in ("bad", "good")]), list)


def test_names_that_are_not_utf_8_have_escapes(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/a\xff\n")
    with open(os.fsencode(tmp_path) + b"/a\xff\n/log.jsonl", "w") as file:
        file.write('{"validation/main/accuracy": 0.5}\n')
    rows = _rows(tmp_path)
    assert list(rows) == ["a\\udcff\\n"]
    assert rows["a\\udcff\\n"].best == 0.5


def test_links_in_a_run_are_not_followed(tmp_path):
    folder = make_run(tmp_path / "results" / "a")
    (tmp_path / "secret").write_text("model:\n  arch: secret\n")
    (folder / "config.yaml").unlink()
    (folder / "config.yaml").symlink_to(tmp_path / "secret")
    assert _rows(tmp_path / "results")["a"].arch == ""
    assert Run("a", str(folder)).text("config.yaml") is None


def test_runs_come_go_and_change(tmp_path):
    runs = Runs(tmp_path)
    assert runs.refresh() == []
    folder = make_run(tmp_path / "a")
    assert [row.name for row in runs.refresh()] == ["a"]
    run = runs.get("a")
    runs.refresh()
    assert runs.get("a") is run
    folder.rename(tmp_path / "b")
    assert [row.name for row in runs.refresh()] == ["b"]
    assert runs.get("a") is None
    assert run.row().last is None  # whoever still holds it


def test_the_folder_is_listed_once_in_an_interval(tmp_path):
    runs = Runs(tmp_path)
    runs.refresh(60)
    make_run(tmp_path / "a")
    assert runs.refresh(60) == []
    assert len(runs.refresh()) == 1


@pytest.mark.parametrize("name", ["..", "a/../..", "/etc", "", "a/", "./a", "a\0"])
def test_only_listed_names_lead_to_a_folder(tmp_path, name):
    make_run(tmp_path / "results" / "a")
    runs = Runs(tmp_path / "results")
    runs.refresh()
    assert runs.get(name) is None


def test_texts_and_weights(tmp_path):
    folder = make_run(tmp_path / "a")
    for name in ("snapshot_iter_9.npz", "snapshot_iter_10.npz", "snapshot_best.npz", "model.npz", "other.npz"):
        (folder / name).touch()
    (folder / "snapshot_iter_11.npz").symlink_to("/etc/passwd")
    run = Run("a", str(folder))
    assert run.weights() == ["model.npz", "snapshot_best.npz", "snapshot_iter_10.npz", "snapshot_iter_9.npz"]
    (folder / "environment.txt").write_bytes(b"<script>\xff\n")
    assert run.text("environment.txt") == "<script>\N{REPLACEMENT CHARACTER}\n"
    assert run.text("conversion.txt") is None


def test_differences():
    first, second = {"a.b": 1, "a.c": [1, 2], "d.e": None}, {"a.b": 1, "a.c": [1, 3], "x.y": "<b>"}
    assert differences([first, second]) == [("a.c", "[1, 2]", "[1, 3]"), ("d.e", "None", "-"), ("x.y", "-", "<b>")]
    assert differences([first, dict(first)]) == []
