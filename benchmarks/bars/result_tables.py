"""A record as aligned text, for the console."""

from benchmarks.bars import goals
from benchmarks.bars.result_columns import COUNT_COLUMNS, ROW_COLUMNS


def table(record, batch):
    """Returns all rows of one batch size, and how our best one compares with the best peer.

    Args:
        record: see :mod:`benchmarks.bars.record`.
        batch: images in a batch.
    """
    rows = [row for row in record["rows"] if row["batch"] == batch]
    lines = _aligned(ROW_COLUMNS, rows)
    own, peer = goals.ours(rows), goals.peer(rows)
    if own and peer:
        lines.append(f"  {own['name']} over {peer['name']}: {goals.over_peer(rows):.2f}")
    return "\n".join([f"batch {batch}", *lines])


def counts(record):
    """Returns what was counted of a step of ResNet-50 on the stand-in for a device."""
    return "\n".join(["counted without a GPU: a step of ResNet-50", *_aligned(COUNT_COLUMNS, record["counts"])])


def _aligned(columns, rows):
    """The first column and the last one are text, the others numbers; those without any are left out."""
    lines = [[title for title, _ in columns], *([text(row) for _, text in columns] for row in rows)]
    kept = [column for column in zip(*lines, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in kept]
    return [_line(cells, widths) for cells in zip(*kept, strict=True)]


def _line(cells, widths):
    name, *numbers, remark = cells
    padded = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=False)] if any(numbers) else []
    return ("  " + "  ".join([name.ljust(widths[0]), *padded, remark])).rstrip()
