"""Logs that are read piece by piece: files of any size, which change meanwhile or cannot be read for a while."""

import errno
import json
import math
import os
import random

import pytest

from mixprec.app.monitor import log as logs
from mixprec.app.monitor.log import GradientLog, Log
from mixprec.base import files


def _lines(numbers, **values):
    return "".join(json.dumps({"iteration": number, **values}) + "\n" for number in numbers)


def _read(log):
    """Reads a log to its end; returns how many pieces that took."""
    for count in range(1, 10_000):
        log.refresh()
        assert log.cost <= 2 * logs.PIECE
        if log.share == 1:
            return count
    raise AssertionError(log.share)


@pytest.fixture
def small(monkeypatch):
    """Small pieces."""
    monkeypatch.setattr("mixprec.app.monitor.log.PIECE", 3000)
    monkeypatch.setattr("mixprec.app.monitor.log._LONGEST", 700)


@pytest.mark.parametrize("kind", [Log, GradientLog])
def test_of_a_huge_file_without_lines_a_piece_is_read(tmp_path, kind):
    path = tmp_path / "log.jsonl"
    path.touch()
    os.truncate(path, 100 << 30)
    log = kind(str(path))
    for count in range(1, 4):
        log.refresh()
        assert log.cost <= logs.PIECE
        assert log.share == pytest.approx(count * logs.PIECE / (100 << 30))
    assert (log.last, log.damaged) == ({}, 0)


def test_of_a_file_of_line_breaks_a_piece_is_few_lines(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"\n" * (8 << 20))
    log = Log(str(tmp_path / "log.jsonl"))
    log.refresh()
    assert 0 < log.damaged <= logs.PIECE // 200 + 1
    assert 0 < log.share < 0.01


def test_pieces_are_as_good_as_the_whole(tmp_path, small, monkeypatch):
    drawn = random.Random(0)
    lines = [json.dumps({"iteration": number, "x": "y" if number % 7 == 0 else number}) for number in range(200)]
    for _ in range(30):
        lines.insert(drawn.randrange(len(lines)), drawn.choice(["", "{", "x" * 800, "[" * 5000, '{"a": null}']))
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n{half of")
    log, whole = Log(str(tmp_path / "log.jsonl")), Log(str(tmp_path / "log.jsonl"))
    assert _read(log) > 5
    monkeypatch.setattr("mixprec.app.monitor.log.PIECE", 1 << 30)
    assert _read(whole) == 1
    assert [value for value in whole.values("iteration") if value == value] == [n for n in range(200) if n % 7]
    assert repr(log.columns) == repr(whole.columns)
    assert (log.damaged, log.last) == (whole.damaged, whole.last)
    assert not log.refresh()


def test_the_entry_behind_a_line_of_any_length_is_read(tmp_path, small):
    (tmp_path / "log.jsonl").write_text(_lines([1]) + "x" * 100_000 + "\n" + _lines([2]))
    log = Log(str(tmp_path / "log.jsonl"))
    assert _read(log) > 30
    assert (list(log.values("iteration")), log.damaged) == ([1, 2], 1)


def test_a_file_that_grows_faster_than_it_is_read_does_not_hold_up_the_page(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(_lines(range(10)))

    class Growing(Log):
        def take(self, entry):
            super().take(entry)
            with path.open("a") as file:
                file.write(_lines(range(1000, 1002)))

    log = Growing(str(path))
    assert log.refresh()
    assert len(log) == 10
    assert log.refresh()
    assert len(log) == 30


def test_a_file_that_is_replaced_or_cut_while_it_is_read_is_read_anew(tmp_path, small):
    path = tmp_path / "log.jsonl"
    path.write_text(_lines(range(1000)))
    log = Log(str(path))
    log.refresh()
    assert 0 < len(log) < 100
    (tmp_path / "new").write_text(_lines(range(500), loss=1.0))
    os.replace(tmp_path / "new", path)
    _read(log)
    assert list(log.values("iteration")) == list(range(500))
    path.write_text(_lines(range(800)))
    log.refresh()
    os.truncate(path, len(_lines(range(3))))
    _read(log)
    assert list(log.values("iteration")) == [0, 1, 2]
    os.truncate(path, 0)
    _read(log)
    assert len(log) == 0


@pytest.mark.parametrize(("number", "where"), [(errno.EMFILE, "opening"), (errno.EIO, "reading")])
def test_an_error_that_says_nothing_about_the_log_leaves_it_as_it_was(tmp_path, monkeypatch, number, where):
    path = tmp_path / "log.jsonl"
    path.write_text(_lines(range(5)))
    log = Log(str(path))
    log.refresh()
    version = log.version
    with path.open("a") as file:
        file.write(_lines([5]))

    class Bad:
        def __init__(self, *arguments):
            if where == "opening":
                raise OSError(number, os.strerror(number))
            self._file = path.open("rb")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self._file.close()

        def fileno(self):
            return self._file.fileno()

        def seek(self, place):
            raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_below", Bad)
        assert log.refresh()
        assert (len(log), log.problem) == (5, os.strerror(number))
        assert log.version > version
    assert log.refresh()
    assert (len(log), log.problem) == (6, None)


def test_within_an_interval_a_log_is_read_once(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(_lines([1]))
    log = Log(str(path))
    log.refresh(60)
    path.write_text(_lines([1, 2]))
    assert not log.refresh(60)
    assert log.refresh()


def test_of_very_many_entries_the_peaks_and_rare_values_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("mixprec.app.monitor.log._VALUES_HELD", 400)
    entries = [{"iteration": number, "loss": math.sin(number)} for number in range(3000)]
    for number in range(0, 3000, 500):
        entries[number]["accuracy"] = number / 3000
    entries[1234]["loss"], entries[2345]["loss"] = 30.0, -40.0
    for entry in entries[500:800]:
        entry["loss"] = None
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    log = Log(str(tmp_path / "log.jsonl"))
    _read(log)
    assert 200 <= len(log) * len(log.columns) <= 800
    assert log.last == {"iteration": 2999, "loss": math.sin(2999)}
    steps, losses = list(log.values("iteration")), list(log.values("loss"))
    assert steps == sorted(steps)
    assert {30.0, -40.0, math.inf} <= set(losses)
    assert 500 <= steps[losses.index(math.inf)] <= 800
    assert abs(steps[losses.index(30.0)] - 1234) <= 100
    assert [value for value in log.values("accuracy") if value == value] == [n / 3000 for n in range(0, 3000, 500)]


def test_what_an_entry_holds_is_bounded(tmp_path):
    entry = {**{f"{number}": 1 for number in range(500)}, "x" * 10_000: 1}
    (tmp_path / "log.jsonl").write_text(json.dumps({"x" * 10_000: 1}) + "\n" + json.dumps(entry) + "\n")
    log = Log(str(tmp_path / "log.jsonl"))
    _read(log)
    assert len(log.last) == 100
    assert max(map(len, log.columns)) < 10


def test_links_on_the_way_are_not_followed(tmp_path):
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    (tmp_path / "elsewhere" / "run" / "log.jsonl").write_text(_lines([1]))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a").symlink_to(tmp_path / "elsewhere")
    log = Log(str(tmp_path / "results" / "a" / "run" / "log.jsonl"), str(tmp_path / "results"))
    assert not log.refresh()
