"""The picture of a parity study."""

from matplotlib.figure import Figure

from mixprec import files

_COLOURS = {"fp32": "C0", "fp16": "C1", "small-scale": "C3", "low-lr": "C2", "low-lr-no-masters": "C4"}


def save(path, record):
    """Draws the differences between the seeds, with interval and margin, and the accuracies of all runs.

    Args:
        path: of the picture; its suffix is the format.
        record: from :func:`benchmarks.parity_study.as_json`.
    """
    figure = Figure(figsize=(10, 4.4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _differences(left, record["comparisons"][0], record["settings"])
    _curves(right, record)
    with files.replacing(path) as temporary:
        figure.savefig(temporary)


def _differences(axes, comparison, settings):
    margin = settings["margin"]
    axes.axhspan(-margin, margin, color="C2", alpha=0.15, label=f"margin, +-{margin:g}")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.plot(comparison["seeds"], comparison["differences"], "o", color="C1", label="a seed")
    place = len(comparison["seeds"])
    if comparison["low"] is not None:
        errors = [[comparison["mean"] - comparison["low"]], [comparison["high"] - comparison["mean"]]]
        label = f"mean, {settings['level']:.0%} interval"
        axes.errorbar([place], [comparison["mean"]], errors, fmt="D", color="black", capsize=6, label=label)
    axes.set_xticks([*comparison["seeds"], place], [*map(str, comparison["seeds"]), "mean"])
    axes.set(title="FP16 - FP32", xlabel="seed", ylabel="accuracy, percentage points")
    reach = max(margin, *map(abs, comparison["differences"]), abs(comparison["low"] or 0), abs(comparison["high"] or 0))
    axes.set_ylim(-1.3 * reach, 1.6 * reach)
    axes.legend(fontsize="small", loc="upper center", ncols=2)


def _curves(axes, record):
    for arm in record["arms"]:
        label = arm["title"]
        for run in record["runs"]:
            if run["arm"] == arm["name"]:
                epochs = range(1, len(run["accuracies"]) + 1)
                axes.plot(epochs, run["accuracies"], color=_COLOURS[arm["name"]], alpha=0.7, label=label)
                label = None  # the legend has one line an arm
    axes.set(title="validation accuracy, a line for each run", xlabel="epoch", ylabel="%")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
