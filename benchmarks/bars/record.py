"""The record of a run of the bars: what is written as JSON, and how it is read again without trust."""

import dataclasses
import datetime
import json
import math
import statistics
from collections.abc import Callable

from mixprec import environment, files
from mixprec.messages import OneLineError
from mixprec.native.threads import number_of_threads

FORMAT = "mixprec bars 1"
GROUPS = ("plain", "config", "precision", "ablation", "peer")  # in the order of tables and charts
_LARGEST = 1 << 26  # bytes; a record has some hundreds of KiB
_EXACT = 1e-9  # relative; statistics of a row are computed from numbers of the record


class RecordError(OneLineError):
    """A file is not a record of the bars; in one line: file, key, what was found, what would be right."""


def as_json(rows, counts, rates, made, device, kind, /, *, complete, **settings):
    """Returns the record of a run as a dict for JSON.

    Args:
        rows: list of :class:`~benchmarks.bars.row_statistics.Row`.
        counts: list of dicts, see ``_COUNT_ROW``: a step of the full ResNet-50 on the stand-in device; may be empty.
        rates: :class:`~benchmarks.rates.Rates` of the machine, or ``None``.
        made: what :func:`benchmarks.machine.record` has returned when the run began.
        device: what was measured, in words.
        kind: ``"gpu"`` or ``"cpu"``.
        complete: whether the run has come to its end.
        **settings: of the run: ``arch``, ``size``, ``batch``, ``blocks``, ``block_steps``, ``limit``, ``peer``,
            ``rows``, ``minutes``.
    """
    versions = {component.name: component.version for component in environment.components() if component.version}
    return {
        "format": FORMAT,
        "complete": complete,
        "settings": settings,
        **made,
        "device": device,
        "kind": kind,
        "driver": versions.get("CUDA driver"),
        "versions": versions,
        "threads": number_of_threads(),
        "rates": None if rates is None else dataclasses.asdict(rates),
        "rows": [dataclasses.asdict(row) for row in rows],
        "counts": list(counts),
    }


def read(path):
    """Reads a record.

    Args:
        path: of the JSON file.

    Returns:
        dict, as :func:`as_json` makes it

    Raises:
        RecordError: it is not there, no JSON, not of this format, or contradicts itself.
    """
    try:
        record = json.loads(files.read(path, _LARGEST).decode())
        problem = next(_problems(record, _RECORD, ""), "") or next(_contradictions(record), "")
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # of json, or of the encoding
        raise RecordError(f"{path}: not JSON: {error}") from None
    except RecursionError:
        raise RecordError(f"{path}: lists or objects in each other, deeper than Python can read") from None
    if problem:
        raise RecordError(f"{path}: {problem}")
    return record


def when(record):
    """Returns when a run was made, as a ``datetime`` with time zone."""
    return datetime.datetime.fromisoformat(record["date"])


def gpu_name(device):
    """Returns the name of a GPU from what it is in words, without its number among others, capability and memory."""
    return device.partition(": ")[2].partition(", ")[0]


# The schema: a dict is an object with exactly these keys, a list of one kind a list of it.


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A kind of values: what they are in words, and whether something is one."""

    words: str
    fits: Callable


@dataclasses.dataclass(frozen=True)
class _OrNull:
    """A kind of which a value may be absent."""

    kind: object


@dataclasses.dataclass(frozen=True)
class _Each:
    """An object with any keys, whose values are of a kind."""

    kind: object


def _is_integer(value):
    return type(value) is int and abs(value) < 2**63  # JSON has larger ones, and Python takes them


def _is_number(value):
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_date(value):
    try:
        return datetime.datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _one_of(*values):
    return _Kind(" or ".join(map(json.dumps, values)), lambda value: value in values)


_TEXT = _Kind("a string", lambda value: isinstance(value, str))
_NAME = _Kind("a string that is not empty", lambda value: isinstance(value, str) and value)
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_DATE = _Kind("an ISO date and time with time zone", _is_date)
_SIZE = _Kind("an integer above 0", lambda value: _is_integer(value) and value > 0)
_COUNT = _Kind("an integer of at least 0", lambda value: _is_integer(value) and value >= 0)
_AMOUNT = _Kind("a number of at least 0", lambda value: _is_number(value) and value >= 0)
_RATE = _Kind("a number above 0", lambda value: _is_number(value) and value > 0)

SETTINGS = {
    "arch": _NAME,
    "size": _SIZE,
    "batch": [_SIZE],
    "blocks": _SIZE,
    "block_steps": _SIZE,
    "limit": _RATE,  # seconds
    "peer": _OrNull(_NAME),
    "rows": _OrNull([_NAME]),
    "minutes": _OrNull(_RATE),
}
_NUMBERS = {
    "blocks": [_RATE],  # images a second, as median, minimum and maximum
    "median": _RATE,
    "minimum": _RATE,
    "maximum": _RATE,
    "milliseconds": _RATE,
    "host_milliseconds": _AMOUNT,
    "ratio": _RATE,
    "launches": _AMOUNT,
    "syncs": _AMOUNT,
    "peak": _COUNT,  # bytes
    "roofline": _AMOUNT,  # a share; above 1 where the model of the roofline is wrong
}
_ALWAYS = ("blocks", "median", "minimum", "maximum", "milliseconds")  # what every measured row has
_ROW = {
    "batch": _SIZE,
    "name": _NAME,
    "group": _one_of(*GROUPS),
    **{key: _OrNull(kind) for key, kind in _NUMBERS.items()},
    "reason": _TEXT,
    "note": _TEXT,
}
_COUNT_ROW = {
    "name": _NAME,
    **dict.fromkeys(
        ("launches", "graph_launches", "uploads", "syncs", "conversions", "functions"), _OrNull(_COUNT)
    ),  # null is what is not known; the note says why
    "note": _TEXT,
}
_RECORD = {
    "format": _one_of(FORMAT),
    "complete": _FLAG,
    "settings": SETTINGS,
    "date": _DATE,
    "python": _NAME,
    "numpy": _NAME,
    "chainer": _NAME,
    "mixprec": _OrNull(_NAME),  # a checkout that is not installed has no version
    "torch": _OrNull(_NAME),
    "commit": _OrNull(_NAME),
    "cpu": _NAME,
    "device": _NAME,
    "kind": _one_of("gpu", "cpu"),
    "driver": _OrNull(_NAME),
    "versions": _Each(_NAME),
    "threads": _SIZE,  # of the CPU
    "rates": _OrNull({"bandwidth": _RATE, "flops": _Each(_RATE)}),
    "rows": [_ROW],
    "counts": [_COUNT_ROW],
}


def _problems(value, kind, where):
    """Yields in words where a value is not of a kind, depth first in the order of the schema."""
    inner = kind.kind if isinstance(kind, _OrNull) else kind
    if inner is not kind and value is None:
        return
    if not _fits(value, inner):
        yield _found(where, value, _words(kind))
    elif isinstance(inner, list):
        for place, item in enumerate(value):
            yield from _problems(item, inner[0], f"{where}[{place}]")
    elif not isinstance(inner, _Kind):
        prefix = f"{where}." if where else ""
        kinds = dict.fromkeys(value, inner.kind) if isinstance(inner, _Each) else inner
        for key, part in kinds.items():
            if key in value:
                yield from _problems(value[key], part, prefix + key)
            else:
                yield f"{prefix}{key}: missing, expected {_words(part)}"
        for key in value:
            if key not in kinds:
                yield f"{prefix}{json.dumps(key)[1:-1]}: unknown, expected {', '.join(kinds)}"


def _fits(value, kind):
    """Whether a value is of a kind, but for what is in it."""
    return kind.fits(value) if isinstance(kind, _Kind) else isinstance(value, list if isinstance(kind, list) else dict)


def _words(kind):
    if isinstance(kind, _OrNull):
        return f"{_words(kind.kind)} or null"
    return kind.words if isinstance(kind, _Kind) else "a list" if isinstance(kind, list) else "an object"


def _found(where, value, expected):
    found = json.dumps(value)
    found = found if len(found) <= 60 else f"{found[:57]}..."
    return f"{where or 'the file'}: found {found}, expected {expected}"


def _contradictions(record):
    """Yields in words where rows do not agree with the settings, with each other or with themselves."""
    batches, seen = record["settings"]["batch"], set()
    for place, row in enumerate(record["rows"]):
        where = f"rows[{place}]"
        if row["batch"] not in batches:
            yield _found(f"{where}.batch", row["batch"], f"one of settings.batch, {', '.join(map(str, batches))}")
        if (row["batch"], row["name"]) in seen:
            yield _found(f"{where}.name", row["name"], f"one row of that name at batch {row['batch']}")
        seen.add((row["batch"], row["name"]))
        if row["reason"]:
            for key in _NUMBERS:
                if row[key] is not None:
                    yield _found(f"{where}.{key}", row[key], "null, as there is a reason why it was not measured")
        else:
            yield from _statistics(row, where)


def _statistics(row, where):
    """Yields in words where the numbers of a measured row contradict each other."""
    for key in _ALWAYS:
        if not row[key]:
            yield _found(f"{where}.{key}", row[key], "a value, or a reason why there is none")
            return
    for key, statistic in (("minimum", min), ("median", statistics.median), ("maximum", max)):
        expected = statistic(row["blocks"])
        if not math.isclose(row[key], expected, rel_tol=_EXACT):
            yield _found(f"{where}.{key}", row[key], f"{expected}, the {key} of the blocks")
    low, high = (row["batch"] * 1e3 / row[key] for key in ("maximum", "minimum"))
    if not low * (1 - _EXACT) <= row["milliseconds"] <= high * (1 + _EXACT):
        yield _found(f"{where}.milliseconds", row["milliseconds"], f"{low:g} to {high:g}, by the images a second")
