"""What ``scripts/benchmark.py memory`` has found: as a table, and as a record."""

from benchmarks import machine
from benchmarks.activations.ways import KEPT
from mixprec.native.threads import number_of_threads


def as_json(rows, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on.

    Args:
        rows: list of :class:`~benchmarks.activations.largest.Row`.
        **settings: of the command.
    """
    found = [
        {"way": row.way, "largest": _as_dict(row.largest), "common": _as_dict(row.common), "reason": row.reason}
        for row in rows
    ]
    return {"settings": settings, **machine.record(), "threads": number_of_threads(), "rows": found}


def _as_dict(found):
    if found is None:
        return None
    numbers = {"size": found.size, "peak": found.peak, "before": found.before}
    return {**numbers, "seconds": list(found.seconds), "median": found.median, "plan": found.plan}


def table(record):
    """Returns a record as text."""
    titles, *lines = cells(record)
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]).rstrip()
        for first, *numbers in (titles, *lines)
    )


def common_size(record):
    """Returns the size at which all ways were timed that have one, or ``None``."""
    return next((row["common"]["size"] for row in record["rows"] if row["common"]), None)


def cells(record):
    """Returns the titles of a table of a record, and its lines, as lists of text."""
    common, kept = common_size(record), next((row for row in record["rows"] if row["way"] == KEPT), {})
    titles = ["", "largest image", "pixels", "peak MB", "s a step", "s a pixel"]
    titles += [] if common is None else [f"s a step, {common}x{common}", "of kept"]
    return [titles, *(_line(row, kept)[: len(titles)] for row in record["rows"])]


def _line(row, kept):
    largest, common = row["largest"], row["common"]
    line = [row["way"], "none fits", "", "", "", ""]
    if largest is not None:
        line[1:] = [
            f"{largest['size']}x{largest['size']}",
            _ratio(largest, kept.get("largest"), lambda found: found["size"] ** 2),
            f"{largest['peak'] / 1e6:,.0f}",
            f"{largest['median']:.2f}",
            _ratio(largest, kept.get("largest"), lambda found: found["median"] / found["size"] ** 2),
        ]
    if common is None:
        return [*line, "", ""]
    return [*line, f"{common['median']:.2f}", _ratio(common, kept.get("common"), lambda found: found["median"])]


def _ratio(found, base, value):
    return "" if base is None else f"{value(found) / value(base):.2f}"
