"""The columns of a record's tables, on the console and on the page of results."""

from benchmarks.bars import goals

SUMMARY_TITLES = ("batch", "our best", "images/s", "over plain FP32", "best of PyTorch", "images/s", "ours / PyTorch")


def summary(batch, rows):
    """Returns the cells of :data:`SUMMARY_TITLES` for the rows of a batch size: our best row, and that of PyTorch."""
    own, peer = goals.ours(rows), goals.peer(rows)
    return (
        str(batch),
        *((own["name"], _rate(own["median"]), _maybe(own["ratio"], ".2f")) if own else ("", "", "")),
        *((peer["name"], _rate(peer["median"])) if peer else ("", "")),
        _maybe(goals.over_peer(rows), ".2f"),
    )


def _rate(value):
    return "" if value is None else format(value, ",.0f" if value >= 100 else ".1f")


def _maybe(value, digits):
    return "" if value is None else format(value, digits)


def _count(value):
    return _maybe(value, ",.1f").removesuffix(".0")


def _remark(row):
    return "; ".join(filter(None, [row["reason"] and f"not measured: {row['reason']}", row["note"]]))


# Titles, and what stands there for a row of a record
ROW_COLUMNS = (
    ("row", lambda row: row["name"]),
    ("images/s", lambda row: _rate(row["median"])),
    ("min-max", lambda row: "" if row["reason"] else f"{_rate(row['minimum'])}-{_rate(row['maximum'])}"),
    ("ms a step", lambda row: _maybe(row["milliseconds"], ",.2f")),
    ("host ms", lambda row: _maybe(row["host_milliseconds"], ",.2f")),
    ("ratio", lambda row: _maybe(row["ratio"], ".2f")),
    ("launches", lambda row: _count(row["launches"])),
    ("syncs", lambda row: _count(row["syncs"])),
    ("peak MB", lambda row: "" if row["peak"] is None else f"{row['peak'] / 1e6:,.0f}"),
    ("roofline", lambda row: _maybe(row["roofline"], ".0%")),
    ("", _remark),
)

# Likewise for what was counted of a step
COUNT_COLUMNS = (
    ("row", lambda row: row["name"]),
    ("launches", lambda row: _count(row["launches"])),
    ("graph launches", lambda row: _count(row["graph_launches"])),
    ("uploads", lambda row: _count(row["uploads"])),
    ("syncs", lambda row: _count(row["syncs"])),
    ("conversions of layout", lambda row: _count(row["conversions"])),
    ("others", lambda row: _count(row["functions"])),
    ("", lambda row: row["note"]),
)
