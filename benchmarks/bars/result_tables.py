"""The rows of a record as a table, on the console and on the page of results."""

import re
import textwrap

from benchmarks.bars import config_rows
from benchmarks.bars.record import unit

_REMARK = 100  # characters


def _rate(value):
    return "" if value is None else format(value, ",.0f" if value >= 100 else ".1f")


def _maybe(value, digits):
    return "" if value is None else format(value, digits)


def remark(row):
    """The beginning of what is to be said: the record has all of it."""
    text = "; ".join(filter(None, [row["reason"] and f"not measured: {row['reason']}", row["note"]]))
    return textwrap.shorten(text, _REMARK, placeholder=" ...")


# Titles, with the unit of a run, and the cell of a row of a record
_COLUMNS = {
    "row": lambda row: row["name"],
    "{unit}/s": lambda row: _rate(row["median"]),
    "min-max": lambda row: "" if row["reason"] else f"{_rate(row['minimum'])}-{_rate(row['maximum'])}",
    "ms a step": lambda row: _maybe(row["milliseconds"], ",.2f"),
    "host ms": lambda row: _maybe(row["host_milliseconds"], ",.2f"),
    "ratio": lambda row: _maybe(row["ratio"], ".2f"),
    "launches": lambda row: _maybe(row["launches"], ","),
    "syncs": lambda row: _maybe(row["syncs"], ","),
    "peak MB": lambda row: _maybe(row["peak"] and row["peak"] / 1e6, ",.0f"),
    "kept MB": lambda row: _maybe(row.get("kept") and row["kept"] / 1e6, ",.1f"),  # which older records have not
    "": remark,
}


def cells(rows, settings):
    """Returns the titles of a table of rows of a record, and its lines, without columns that are empty."""
    columns = [[title.format(unit=unit(settings)), *map(cell, rows)] for title, cell in _COLUMNS.items()]
    return list(zip(*(column for column in columns if any(column[1:]) or column[0] == "row"), strict=True))


def comparison(rows):
    """Returns the ratio of our fastest row and the fastest one of a peer as a list of one line, or of none.

    Args:
        rows: of one batch size. A row with something switched off is not ours.
    """
    groups = ("config", "precision")
    own = _fastest(row for row in rows if row["group"] in groups or row["name"] in config_rows.WHOLE)
    peer = _fastest(row for row in rows if row["group"] == "peer")
    return [f"{own['name']} over {peer['name']}: {own['median'] / peer['median']:.2f}"] if own and peer else []


def _fastest(rows):
    return max((row for row in rows if not row["reason"]), key=lambda row: row["median"], default=None)


def console(record, batch):
    """Returns the rows of one batch size as aligned text.

    Args:
        record: see :mod:`benchmarks.bars.record`.
        batch: images or sequences in a batch.
    """
    rows = [row for row in record["rows"] if row["batch"] == batch]
    lines = cells(rows, record["settings"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [f"batch {batch}"]
    for name, *others in lines:
        padded = [other.rjust(width) for other, width in zip(others, widths[1:], strict=True)]
        padded[-1:] = others[-1:] if lines[0][-1] == "" else padded[-1:]  # remarks are text
        text.append("  " + "  ".join([name.ljust(widths[0]), *padded]).rstrip())
    return "\n".join([*text, *(f"  {line}" for line in comparison(rows))])


def markdown(lines):
    """Returns a table of Markdown; the first line has its titles."""
    titles, *others = ([escaped(cell) for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, ["---"] * len(titles), *others))


def escaped(text):
    """Returns text for a cell of a table of Markdown, or a heading."""
    return re.sub(r"([\\|*<>`\[\]])", r"\\\1", " ".join(text.split()))
