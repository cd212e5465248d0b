"""The record of a run of the bars: what is written as JSON, and read again for the page of results."""

import dataclasses
import datetime
import json

from benchmarks.bars.sequences import SEQUENCES
from mixprec.app.parts import environment
from mixprec.base import files
from mixprec.base.messages import OneLineError
from mixprec.base.process_limits import number_of_threads

FORMAT = "mixprec bars 1"
_LARGEST = 1 << 26  # bytes; a record has some tens of KiB
_KEYS = {"format", "complete", "settings", "date", "commit", "cpu", "device", "kind", "versions", "threads", "rows"}


class RecordError(OneLineError):
    """A file is not a record of the bars."""


def as_json(rows, settings, made, device, kind, *, complete):
    """Returns the record of a run as a dict for JSON.

    Args:
        rows: list of :class:`~benchmarks.bars.row_statistics.Row`.
        settings: :class:`~benchmarks.bars.bars_run.Settings`.
        made: what :func:`benchmarks.machine.record` has returned when the run began.
        device: what was measured, in words.
        kind: ``"gpu"`` or ``"cpu"``.
        complete: whether the run has come to its end.
    """
    found = {"format": FORMAT, "complete": complete, "settings": dataclasses.asdict(settings), **made}
    versions = {each.name: each.version for each in environment.components() if each.version}
    found |= {"device": device, "kind": kind, "versions": versions, "threads": number_of_threads()}
    return {**found, "rows": [dataclasses.asdict(row) for row in rows]}


def read(path):
    """Reads a record.

    Args:
        path: of the JSON file.

    Returns:
        dict, as :func:`as_json` makes it

    Raises:
        RecordError: it cannot be read, or is something else.
    """
    try:
        record = json.loads(files.read(path, _LARGEST).decode())
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not JSON: {error}") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT or not record.keys() >= _KEYS:
        raise RecordError(f"{path}: no record with the format {FORMAT!r} and all of its keys")
    return record


def trained(settings):
    """Returns what a run trains, in words, from the settings of a record."""
    size = settings["size"]
    return settings["arch"] if size is None else f"{settings['arch']}, {size}x{size} pixels"


def unit(settings):
    """Returns what is counted: ``"images"``, ``"words"`` or ``"frames"``."""
    return SEQUENCES[settings["arch"]].unit if settings["arch"] in SEQUENCES else "images"


def when(record):
    """Returns when a run was made, as a ``datetime`` with time zone."""
    return datetime.datetime.fromisoformat(record["date"])


def gpu_name(device):
    """Returns the name of a GPU from what it is in words, without its number among others, capability and memory."""
    return device.partition(": ")[2].partition(", ")[0]
