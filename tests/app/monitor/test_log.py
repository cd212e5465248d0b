"""The log of a run as columns, read while training rewrites it."""

import json
import math
import os

import hypothesis
import pytest
from hypothesis import strategies as st

from mixprec.app.monitor.log import GradientLog, Log, sampled


def _write(path, entries, *, raw=b""):
    temporary = path.with_name("new")
    temporary.write_bytes(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries) + raw)
    os.replace(temporary, path)


def _entry(iteration, **values):
    return {"iteration": iteration, "epoch": iteration // 10, "elapsed_time": iteration * 1.5, **values}


def test_columns_hold_what_the_entries_hold(tmp_path):
    path = tmp_path / "log.jsonl"
    _write(path, [_entry(10, loss=2.5), _entry(20, accuracy=0.5), _entry(30, loss=None)])
    log = Log(path)
    assert log.refresh()
    assert len(log) == 3
    assert list(log.values("iteration")) == [10, 20, 30]
    assert log.values("loss")[0] == 2.5
    assert math.isnan(log.values("loss")[1])
    assert log.values("loss")[2] == math.inf
    assert [math.isnan(value) for value in log.values("accuracy")] == [True, False, True]
    assert all(map(math.isnan, log.values("of no entry")))
    assert log.last == {"iteration": 30, "epoch": 3, "elapsed_time": 45, "loss": math.inf}


def test_a_log_that_grows_is_read_on(tmp_path, monkeypatch):
    path, entries = tmp_path / "log.jsonl", [_entry(number) for number in range(50)]
    _write(path, entries)
    log = Log(path)
    log.refresh()
    parsed = []
    monkeypatch.setattr(
        "mixprec.app.monitor.log.json",
        type("Json", (), {"loads": lambda line: parsed.append(line) or json.loads(line)}),
    )
    _write(path, [*entries, _entry(50)])
    assert log.refresh()
    assert len(parsed) == 1
    assert list(log.values("iteration")) == list(range(51))
    assert not log.refresh()


def test_a_log_that_a_resumed_run_has_cut_is_read_anew(tmp_path):
    path = tmp_path / "log.jsonl"
    _write(path, [_entry(number, loss=1.0) for number in range(50)])
    log = Log(path)
    log.refresh()
    _write(path, [_entry(number, loss=1.0) for number in range(20)])
    assert log.refresh()
    assert len(log) == 20
    _write(
        path,
        [*(_entry(number, loss=1.0) for number in range(19)), *(_entry(number, loss=2.0) for number in range(19, 60))],
    )
    assert log.refresh()
    assert list(log.values("loss")) == 19 * [1.0] + 41 * [2.0]


def test_a_log_that_is_gone_has_no_entries(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    assert not log.refresh()
    _write(path, [_entry(1)])
    assert log.refresh()
    path.unlink()
    assert log.refresh()
    assert (len(log), log.last, log.columns) == (0, {}, {})
    path.mkdir()
    assert not log.refresh()


@pytest.mark.parametrize(
    "line",
    [b"{", b"[1, 2]", b'"text"', b"12", b'{"a": "text"}', b'{"a": [1]}', b"\xff\xfe", 100 * b"[" + b"x", b"{" * 3],
)
def test_lines_that_are_no_entries_are_left_out_and_counted(tmp_path, line):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    log = Log(path)
    log.refresh()
    assert (list(log.values("a")), log.damaged) == ([1, 2], 1)


def test_a_line_without_end_is_not_taken(tmp_path):
    path = tmp_path / "log.jsonl"
    _write(path, [_entry(1)], raw=b'{"iteration": 2')
    log = Log(path)
    log.refresh()
    assert (len(log), log.damaged) == (1, 0)
    _write(path, [_entry(1), _entry(2)])
    log.refresh()
    assert (len(log), log.damaged) == (2, 0)


NO_GRADIENTS = [
    *({"loss_scale": 0}, {"loss_scale": None}, {"lowest": 10**9}, {"binades": [-1, 5]}, {"binades": [1e-320, 1e300]}),
    {"binades": 3},
]


@pytest.mark.parametrize("wrong", NO_GRADIENTS)
def test_gradients_that_are_none_are_left_out(tmp_path, wrong):
    good = {"iteration": 1, "epoch": 0.1, "loss_scale": 8.0, "lowest": -3, "binades": [1, 0, 2], "layers": {}}
    _write(tmp_path / "gradients.jsonl", [good, {**good, **wrong}, {**good, "iteration": 2}])
    log = GradientLog(tmp_path / "gradients.jsonl")
    log.refresh()
    assert ([entry["iteration"] for entry in log.entries], log.damaged) == ([1, 2], 1)


def test_of_very_many_gradients_some_stay_evenly(tmp_path):
    good = {"loss_scale": 8.0, "lowest": -3, "binades": [1]}
    _write(tmp_path / "gradients.jsonl", [{**good, "iteration": number} for number in range(5000)])
    log = GradientLog(tmp_path / "gradients.jsonl")
    log.refresh()
    assert [entry["iteration"] for entry in log.entries] == list(range(0, 5000, 8))


_VALUES = st.lists(st.floats() | st.just(math.inf), max_size=400)


@hypothesis.given(values=_VALUES, most=st.integers(4, 60))
@hypothesis.example(values=[*map(float, range(10))], most=4)
def test_few_points_stand_for_many_with_all_peaks(values, most):
    x = list(map(float, range(len(values))))
    points = sampled(x, values, most)
    known = [[a, b] for a, b in zip(x, values, strict=True) if math.isfinite(b)]
    assert all(point in known or point[1] is None for point in points)
    assert points == sorted(points, key=lambda point: point[0])
    if known:
        heights = [height for _, height in points if height is not None]
        assert (min(heights), max(heights)) == (min(b for _, b in known), max(b for _, b in known))
    assert len(points) <= max(most, 3 * (most // 2 + 1))
    assert (None in [height for _, height in points]) == any(map(math.isinf, values))


def test_a_short_curve_is_left_as_it_is():
    assert sampled([1.0, 2.0, 3.0, 4.0], [5.0, math.nan, math.inf, 6.0]) == [[1.0, 5.0], [3.0, None], [4.0, 6.0]]
