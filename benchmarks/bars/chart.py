"""The bar chart of a run: images, words or frames a second of each row, beside each other for each batch size."""

from matplotlib.figure import Figure

from benchmarks.bars.record import trained, unit
from mixprec.base import files


def save(path, record):
    """Draws a run; the same record gives the same file.

    Args:
        path: of the picture, a PNG.
        record: see :mod:`benchmarks.bars.record`.
    """
    with files.replacing(path) as temporary:
        figure(record).savefig(temporary, format="png", metadata={"Software": None})  # no version of matplotlib


def figure(record):
    """Returns the ``matplotlib.figure.Figure`` with axes for each batch size; rows without numbers have no bar.

    Args:
        record: see :mod:`benchmarks.bars.record`.
    """
    settings = record["settings"]
    names = list(dict.fromkeys(row["name"] for row in record["rows"]))
    size = 5 + 3 * len(settings["batch"]), 1.5 + 0.25 * len(names)  # inches
    drawn = Figure(figsize=size, dpi=100, layout="constrained")
    where = record["device"] if record["kind"] == "gpu" else record["cpu"]
    what = f"{trained(settings)}, training on synthetic data"
    drawn.suptitle(f"{what}\n{where}; {record['date'][:10]}", fontsize="medium")
    panels = drawn.subplots(1, len(settings["batch"]), sharey=True, squeeze=False)[0]
    for axes, batch in zip(panels, settings["batch"], strict=True):
        rows = [row for row in record["rows"] if row["batch"] == batch and not row["reason"]]
        medians = [row["median"] for row in rows]
        spread = [[row["median"] - row["minimum"] for row in rows], [row["maximum"] - row["median"] for row in rows]]
        bars = axes.barh([names.index(row["name"]) for row in rows], medians, xerr=spread)
        axes.bar_label(bars, [f"{median:,.4g}" for median in medians], padding=3, fontsize="small")
        axes.set(title=f"batch {batch}", xlabel=f"{unit(settings)}/s", xlim=(0, 1.25 * max(medians, default=1)))
        axes.set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()  # the first row at the top; the axes share it
    return drawn
