"""Listings while files are huge, cannot be read for a while, or become links."""

import errno
import os
import threading

import pytest

from mixprec.app.monitor import runs as listings
from mixprec.app.monitor.run_folder import Run
from mixprec.app.monitor.runs import Runs
from mixprec.app.monitor.server_state import Monitor
from mixprec.base import files
from tests.app.monitor.made_runs import make_run


def _huge(folder, name="log.jsonl", size=10 << 30):
    make_run(folder)
    (folder / name).write_bytes(b"")
    os.truncate(folder / name, size)


def test_a_huge_log_leaves_the_others_their_rows(tmp_path):
    _huge(tmp_path / "huge")
    for number in range(20):
        make_run(tmp_path / f"{number}")
    rows = {row.name: row for row in Runs(tmp_path).refresh()}
    assert rows["19"].best == 0.9
    assert rows["huge"].arch == "resnet8"
    assert (rows["huge"].best, rows["19"].share) == (None, 1)
    assert 0 < rows["huge"].share < 0.001


def test_a_listing_reads_no_more_than_a_round_and_all_have_their_turn(tmp_path, monkeypatch):
    for number in range(12):
        _huge(tmp_path / f"{number:02}")
    make_run(tmp_path / "99")
    runs = Runs(tmp_path)
    total, read = [], Run.read
    monkeypatch.setattr(Run, "read", lambda run: total.append(read(run)) or total[-1])
    for count in range(1, 5):
        rows = {row.name: row for row in runs.refresh()}
        assert sum(total) <= count * listings._ROUND + listings.PIECE
    assert rows["99"].best == 0.9
    assert all(0 < row.share < 1 for row in rows.values() if row.name != "99")


@pytest.mark.parametrize("name", ["log.jsonl", "gradients.jsonl"])
def test_of_one_run_a_huge_log_does_not_hold_up_another(tmp_path, name):
    _huge(tmp_path / "huge", name)
    make_run(tmp_path / "a")
    monitor = Monitor(tmp_path)
    monitor.runs.refresh()
    huge, other = map(monitor.runs.get, ("huge", "a"))
    log = monitor.gradients(huge) if name == "gradients.jsonl" else monitor.log(huge)
    assert 0 < log.share < 0.001
    with log.lock:  # as if a slow disk were read
        found = []
        thread = threading.Thread(target=lambda: found.append(monitor.curves(other, "epoch")), daemon=True)
        thread.start()
        thread.join(60)
    assert len(found) == 1


@pytest.mark.parametrize(
    "name", ["status.json", "config.yaml", "environment.txt", "evaluation-model.json", "log.jsonl"]
)
def test_a_huge_file_of_a_run_is_none_or_its_start(tmp_path, name):
    folder = make_run(tmp_path / "a", status={"state": "done"})
    os.truncate(folder / "log.jsonl", 0)
    (folder / name).write_bytes(b"")
    os.truncate(folder / name, 100 << 30)
    run = Run("a", str(folder))
    assert run.row().name == "a"
    assert len(run.text(name)) <= 1 << 20
    assert isinstance(run.config, dict)


def test_what_cannot_be_read_now_stays_as_it_was(tmp_path, monkeypatch):
    make_run(tmp_path / "deep" / "a", status={"state": "done"})
    make_run(tmp_path / "b")
    runs = Runs(tmp_path)
    rows = runs.refresh()

    def refuse(*arguments, **keywords):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("open", "scandir"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            assert runs.refresh() == rows
    with monkeypatch.context() as patch:
        patch.setattr(files, "folder_below", refuse)
        assert runs.refresh() == rows
        assert runs.get("b").config["model.arch"] == "resnet8"
    (tmp_path / "b").rename(tmp_path / "c")
    assert [row.name for row in runs.refresh()] == ["c", "deep/a"]


@pytest.mark.parametrize("above", [False, True])
def test_a_folder_that_becomes_a_link_shows_nothing_of_where_it_leads(tmp_path, above):
    secret = make_run(tmp_path / "secrets" / "b", config="model:\n  arch: secret\n")
    (secret / "environment.txt").write_text("secret")
    (secret / "model.npz").write_bytes(b"")
    make_run(tmp_path / "results" / "a" / "b")
    runs = Runs(tmp_path / "results")
    runs.refresh()
    run = runs.get("a/b")
    place = tmp_path / "results" / "a" if above else tmp_path / "results" / "a" / "b"
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "secrets" if above else secret)
    assert (run.row().arch, run.row().best, run.row().state) == ("", None, "unknown")
    assert (run.text("environment.txt"), run.size("environment.txt"), run.weights()) == (None, 0, [])
    assert runs.refresh() == []


@pytest.mark.parametrize("name", ["log.jsonl", "status.json", "config.yaml", "model.npz", "environment.txt"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_as_if_it_were_not_there(tmp_path, name, make):
    folder = make_run(tmp_path / "a")
    for each in ("status.json", "log.jsonl"):
        (folder / each).unlink(missing_ok=True)
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    run = Run("a", str(folder))
    assert run.row().state == "unknown"
    assert run.text(name) is None
