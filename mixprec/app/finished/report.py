"""The results of an export: a table, JSON, and a picture."""

import dataclasses
import io
import json

from mixprec.app.finished.json_lines import clean
from mixprec.base.text_table import aligned


def table(rows, images, guessed):
    """Returns the lines of a table.

    Args:
        rows: list of :class:`~mixprec.app.finished.check.Row`, mixprec's first.
        images: number of images.
        guessed: accuracy of always predicting the most frequent class, as a share.
    """
    sizes = sorted({size for row in rows for size in row.speeds})
    heads = ["", "accuracy", "drop", "equal top-1", "difference", "MB", *(f"images/s, {size}" for size in sizes), ""]
    cells = [heads]
    for row in rows:
        cells.append(
            [
                row.name,
                f"{100 * row.accuracy:.2f} %",
                "" if row.size is None else f"{row.drop:+.2f}",
                f"{100 * row.equal:.2f} %",
                f"{row.difference:.2g} of {row.largest:.3g}",
                "" if row.size is None else f"{row.size / 1e6:.2f}",
                *(f"{row.speeds[size]:,.0f}" if size in row.speeds else "" for size in sizes),
                _verdict(row),
            ]
        )
    lines = aligned(cells)
    share = f"{100 * guessed:.2f} % of them of one class"
    lines.append(f"{images} validation images, {share}; speeds are onnxruntime's and mixprec's on this CPU")
    if rows[0].accuracy <= guessed:
        lines.append(f"always naming that class would be as good as {rows[0].name}: kept limits prove nothing")
    return lines


def _verdict(row):
    if not row.is_finite:
        return "NOT FINITE"
    if row.limit is None:
        return ""
    return f"{'within' if row.is_good else 'ABOVE'} the limit of {row.limit:g} points"


def as_json(rows, **about):
    """Returns the rows and further facts as the text of a JSON file; null replaces numbers that are not finite."""
    found = [{**dataclasses.asdict(row), "is_good": row.is_good} for row in rows]
    return json.dumps(clean({**about, "rows": found}), indent=1, allow_nan=False) + "\n"


def picture(rows):
    """Returns a PNG file of accuracy and images a second of all rows."""
    from matplotlib.figure import Figure  # takes a second: most commands draw nothing

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
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()
