"""What an export has found: a table to read, JSON, and a picture."""

import dataclasses
import json

from matplotlib.figure import Figure

from mixprec import files


def table(rows, images):
    """Returns the lines of a table of :class:`~mixprec.export_run.check.Row`."""
    sizes = sorted({size for row in rows for size in row.speeds})
    heads = ["", "accuracy", "drop", "equal top-1", "difference", "MB", *(f"images/s, {size}" for size in sizes), ""]
    cells = [heads]
    for row in rows:
        limit = "" if row.limit is None else f"{'within' if row.is_good else 'ABOVE'} the limit of {row.limit:g} points"
        if row.limit is None and not row.is_good:
            limit = "NOT FINITE"
        cells.append(
            [
                row.name,
                f"{100 * row.accuracy:.2f} %",
                "" if row.size is None else f"{row.drop:+.2f}",
                f"{100 * row.equal:.2f} %",
                f"{row.difference:.2g} of {row.largest:.3g}",
                "" if row.size is None else f"{row.size / 1e6:.2f}",
                *(f"{row.speeds[size]:,.0f}" if size in row.speeds else "" for size in sizes),
                limit,
            ]
        )
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [*lines, f"{images} validation images; speeds are onnxruntime's and mixprec's on this CPU"]


def write_json(path, rows, **about):
    """Writes the rows, and what else is known, as JSON."""
    found = [{**dataclasses.asdict(row), "is_good": row.is_good} for row in rows]
    files.write_text(path, json.dumps({**about, "rows": found}, indent=1) + "\n")


def write_picture(path, rows):
    """Draws accuracy and images a second of all rows."""
    figure = Figure(figsize=(8, 0.5 * len(rows) + 1.4), layout="constrained")
    accuracy, speed = figure.subplots(1, 2, sharey=True)
    names = [row.name for row in rows]
    colors = ["tab:gray" if row.size is None else "tab:blue" if row.is_good else "tab:red" for row in rows]
    bars = accuracy.barh(names, [100 * row.accuracy for row in rows], color=colors)
    accuracy.bar_label(bars, [f"{100 * row.accuracy:.2f}" for row in rows], padding=-40, color="white")
    accuracy.set(xlabel="validation accuracy, %", xlim=(0, 100))
    accuracy.invert_yaxis()
    size = max((size for row in rows for size in row.speeds), default=None)
    bars = speed.barh(names, [row.speeds.get(size, 0) for row in rows], color=colors)
    speed.bar_label(bars, [f"{row.speeds[size]:,.0f}" if size in row.speeds else "" for row in rows], padding=2)
    speed.set(xlabel=f"images/s on this CPU, batches of {size}")
    speed.margins(x=0.2)
    with files.replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)
