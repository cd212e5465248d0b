"""The record of the bars: what is written is read again, and what is wrong in a file is said in one line."""

import copy
import dataclasses
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import machine
from benchmarks.bars import page
from benchmarks.bars import record as bars_record
from benchmarks.bars.record import RecordError
from benchmarks.bars.row_statistics import Row
from benchmarks.rates import Rates
from mixprec import environment
from tests.benchmarks import bars_record as examples
from tests.cases import tries

pytestmark = pytest.mark.slow

ABSENT = object()


def _read(folder, record):
    path = folder / "a-bars.json"
    path.write_text(json.dumps(record))
    return bars_record.read(path)


def _set(record, place, value):
    """Replaces what is in a nested place, or takes it away."""
    *outer, last = place
    for key in outer:
        record = record[key]
    if value is ABSENT:
        del record[last]
    else:
        record[last] = value


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_a_record_is_read_as_it_is(kind, tmp_path):
    record = getattr(examples, kind)()
    assert _read(tmp_path, record) == record


SETTINGS = {"arch": "resnet18", "size": 64, "batch": [4], "blocks": 2, "block_steps": 3, "limit": 60.0}
MADE = ("date", "python", "numpy", "chainer", "mixprec", "torch", "commit", "cpu")
SETTINGS |= {"peer": None, "rows": ["plain*"], "minutes": 1.5}


def test_what_is_written_can_be_read(tmp_path, monkeypatch):
    found = [environment.Component(*text.split("|")) for text in ("CUDA driver|ok|13.0", "CuPy|ok|14.2.0", "GPU|ok")]
    monkeypatch.setattr(environment, "components", lambda: found)
    made = {key: examples.cpu()[key] for key in MADE}
    rows = [
        Row(4, "a", "plain", (8.0, 10.0), 9.0, 8.0, 10.0, 450.0, ratio=1.0, peak=12),
        Row(4, "b", "peer", reason="needs a GPU"),
    ]
    record = bars_record.as_json(
        *(rows, examples.COUNTS, Rates(2e9, {"float32": 3e11}), made, examples.GPU_DEVICE, "gpu"),
        complete=True,
        **SETTINGS,
    )
    read = _read(tmp_path, record)
    assert (read["format"], read["complete"], read["settings"]) == ("mixprec bars 1", True, SETTINGS)
    assert (read["driver"], read["versions"]) == ("13.0", {"CUDA driver": "13.0", "CuPy": "14.2.0"})
    assert {key: read[key] for key in MADE} == made
    assert read["rates"] == {"bandwidth": 2e9, "flops": {"float32": 3e11}}
    assert read["counts"] == examples.COUNTS
    assert read["rows"] == [{**dataclasses.asdict(rows[0]), "blocks": [8.0, 10.0]}, dataclasses.asdict(rows[1])]


def test_without_driver_rates_and_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "components", list)
    found = bars_record.as_json([], [], None, machine.record(), "CPU: asked for", "cpu", complete=False, **SETTINGS)
    read = _read(tmp_path, found)
    assert (read["driver"], read["versions"], read["rates"]) == (None, {}, None)
    assert (read["rows"], read["counts"], read["complete"]) == ([], [], False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "the file: found [], expected an object"),
        ("{}", 'format: missing, expected "mixprec bars 1"'),
        ('{"format": "mixprec bars 2"}', 'format: found "mixprec bars 2", expected "mixprec bars 1"'),
    ],
)
def test_a_file_that_is_no_record(text, message, tmp_path):
    path = tmp_path / "x-bars.json"
    path.write_text(text)
    with pytest.raises(RecordError) as caught:
        bars_record.read(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"rows": ' + "[" * 990 + "]" * 990 + "}", '{"a":' * 100_000])
def test_a_file_that_is_nested_deeply(text, tmp_path):
    path = tmp_path / "x-bars.json"
    path.write_text(text)
    with pytest.raises(RecordError) as caught:
        bars_record.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(RecordError) as caught:
        bars_record.read(tmp_path / "none.json")
    assert str(caught.value) == f"{tmp_path / 'none.json'}: No such file or directory"
    with pytest.raises(RecordError) as caught:
        bars_record.read(tmp_path)
    assert str(caught.value) == f"{tmp_path}: Is a directory"
    (tmp_path / "latin").write_bytes(b'{"a": "\xe4"}')
    with pytest.raises(RecordError, match=r"latin: not JSON: 'utf-8' codec can't decode byte 0xe4 in position 7"):
        bars_record.read(tmp_path / "latin")


WRONG = [
    (("complete",), "yes", 'complete: found "yes", expected true or false'),
    (("settings", "minutes"), ABSENT, "settings.minutes: missing, expected a number above 0 or null"),
    (("settings", "batch"), 8, "settings.batch: found 8, expected a list"),
    (("settings", "batch", 0), 8.0, "settings.batch[0]: found 8.0, expected an integer above 0"),
    (("settings", "rows"), [""], 'settings.rows[0]: found "", expected a string that is not empty'),
    (("settings", "more"), 1, "settings.more: unknown, expected arch, size, batch, blocks, block_steps, limit, peer, "),
    (("date",), "yesterday", 'date: found "yesterday", expected an ISO date and time with time zone'),
    (("date",), "2026-11-22T15:22:09", 'date: found "2026-11-22T15:22:09", expected an ISO date and time with time '),
    (("date",), 5, "date: found 5, expected an ISO date and time with time zone"),
    (("kind",), "tpu", 'kind: found "tpu", expected "gpu" or "cpu"'),
    (("versions", "NumPy"), 2, "versions.NumPy: found 2, expected a string that is not empty"),
    (("rates",), 5, "rates: found 5, expected an object or null"),
    (("rates", "flops", "float16"), True, "rates.flops.float16: found true, expected a number above 0"),
    (("rates", "bandwidth"), math.inf, "rates.bandwidth: found Infinity, expected a number above 0"),
    (("rows",), None, "rows: found null, expected a list"),
    (("rows", 0), "x" * 99, f'rows[0]: found "{"x" * 56}..., expected an object'),
    (("rows", 0, "name"), ABSENT, "rows[0].name: missing, expected a string that is not empty"),
    (("rows", 0, "a\nb"), 1, r"rows[0].a\nb: unknown, expected batch, name, group, blocks, median, minimum, maximum, "),
    (("rows", 0, "group"), "ours", 'rows[0].group: found "ours", expected "plain" or "config" or "precision" or '),
    (("rows", 0, "median"), "20", 'rows[0].median: found "20", expected a number above 0 or null'),
    (("rows", 0, "median"), math.nan, "rows[0].median: found NaN, expected a number above 0 or null"),
    (("rows", 0, "ratio"), 0, "rows[0].ratio: found 0, expected a number above 0 or null"),
    (("rows", 0, "syncs"), -1, "rows[0].syncs: found -1, expected a number of at least 0 or null"),
    (("rows", 0, "peak"), 1.5, "rows[0].peak: found 1.5, expected an integer of at least 0 or null"),
    (("rows", 0, "blocks", 1), 0, "rows[0].blocks[1]: found 0, expected a number above 0"),
    (("rows", 0, "reason"), None, "rows[0].reason: found null, expected a string"),
    (("counts", 1, "note"), None, "counts[1].note: found null, expected a string"),
    (("counts", 1, "launches"), 1.5, "counts[1].launches: found 1.5, expected an integer of at least 0 or null"),
]
CONTRADICTIONS = [
    (("rows", 0, "batch"), 9, "rows[0].batch: found 9, expected one of settings.batch, 8"),
    (("rows", 2, "name"), "plain Chainer FP32", 'rows[2].name: found "plain Chainer FP32", expected one row of that '),
    (("rows", 0, "reason"), "no", "rows[0].blocks: found [20.0, 19.8, 20.4], expected null, as there is a reason why "),
    (
        ("rows", 1, "ratio"),
        2.0,
        "rows[1].ratio: found 2.0, expected null, as there is a reason why it was not measured",
    ),
    (("rows", 1, "reason"), "", "rows[1].blocks: found null, expected a value, or a reason why there is none"),
    (("rows", 0, "blocks"), [], "rows[0].blocks: found [], expected a value, or a reason why there is none"),
    (("rows", 0, "maximum"), None, "rows[0].maximum: found null, expected a value, or a reason why there is none"),
    (("rows", 0, "median"), 21.0, "rows[0].median: found 21.0, expected 20.0, the median of the blocks"),
    (("rows", 0, "minimum"), 19.0, "rows[0].minimum: found 19.0, expected 19.8, the minimum of the blocks"),
    (("rows", 0, "maximum"), 20.0, "rows[0].maximum: found 20.0, expected 20.4, the maximum of the blocks"),
    (("rows", 0, "milliseconds"), 0.4, "rows[0].milliseconds: found 0.4, expected 392.157 to 404.04, by the images a "),
]


@pytest.mark.parametrize(("place", "value", "message"), WRONG + CONTRADICTIONS)
def test_what_is_wrong_is_said_in_one_line(place, value, message, tmp_path):
    record = examples.cpu()
    _set(record, place, value)
    with pytest.raises(RecordError) as caught:
        _read(tmp_path, record)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'a-bars.json'}: {message}")
    assert "\n" not in said


# Any value anywhere


def _places(value, place=()):
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*place, key))


PLACES = list(_places(examples.cpu()))[1:]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([10**400, "gpu"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=tries(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=st.just(ABSENT) | VALUES)
def test_a_changed_record_is_refused_in_one_line_or_has_a_page(place, value, tmp_path):
    record = copy.deepcopy(examples.cpu())
    _set(record, place, value)
    try:
        read = _read(tmp_path, record)
    except RecordError as caught:
        error = caught
    else:
        assert page.page({"a-bars.json": read}).startswith("<!-- Generated")
        return
    assert len(str(error).splitlines()) == 1
