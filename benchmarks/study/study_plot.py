"""The picture of a study."""

from matplotlib.figure import Figure

from mixprec import files


def save(path, record):
    """Draws the differences of each comparison: of each seed, their mean with its interval, and the margin.

    Args:
        path: of the picture; its suffix is the format.
        record: from :func:`benchmarks.study.study_report.as_json`.
    """
    rows = [row for row in record["rows"] if row["against"] is not None]
    settings = record["settings"]
    figure = Figure(figsize=(9, 1.2 + 0.4 * len(rows)), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.axvspan(-settings["margin"], settings["margin"], color="C2", alpha=0.15, label="margin")
    axes.axvline(0, color="black", linewidth=0.8)
    for place, row in enumerate(rows):
        axes.plot(row["differences"], [place] * len(row["differences"]), "o", color="C1", alpha=0.6, label="a seed")
        if row["low"] is not None:
            ends = [[row["difference"] - row["low"]], [row["high"] - row["difference"]]]
            interval = f"mean, {settings['level']:.0%} interval"
            axes.errorbar([row["difference"]], [place], xerr=ends, fmt="D", color="black", capsize=5, label=interval)
    axes.set_yticks(range(len(rows)), [f"{row['arm']}, against {row['against']}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("difference in accuracy, percentage points")
    labels = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # one line of each kind
    axes.legend(labels.values(), labels.keys(), fontsize="small")
    with files.replacing(path) as temporary:
        figure.savefig(temporary)
