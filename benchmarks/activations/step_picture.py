"""The picture of ``scripts/benchmark.py memory-picture``: the memory of a step over time."""

import matplotlib
from matplotlib.figure import Figure

from mixprec import files

_MEGABYTE, _MILLISECOND = 1e6, 1e-3


def save(path, curves, budget, title):
    """Draws curves of memory; the same curves give the same file.

    Args:
        path: of the picture, a ``pathlib.Path``; its suffix is the format.
        curves: list of :class:`~benchmarks.activations.residency.Curve`.
        budget: bytes, a line across.
        title: of the picture.
    """
    figure = Figure(figsize=(9, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        colour = f"C{number}"
        times = [time / _MILLISECOND for time in curve.times]
        memory = [each / _MEGABYTE for each in (*curve.memory, curve.memory[-1])]
        axes.step(times, memory, where="post", color=colour, linewidth=1.4, label=curve.name)
        axes.axvline(curve.turn / _MILLISECOND, color=colour, linestyle=":", linewidth=1)
    axes.plot([], [], color="grey", linestyle=":", linewidth=1, label="backward pass begins")
    axes.axhline(budget / _MEGABYTE, color="black", linestyle="--", linewidth=1, label="budget of offload")
    axes.set(xlabel="ms since the step began, as predicted", ylabel="MB in use", xlim=(0, None), ylim=(0, None))
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.005, 0.5))
    suffix = path.suffix[1:]
    metadata = {"Software": None} if suffix == "png" else {"Date": None, "Creator": None}
    with matplotlib.rc_context({"svg.hashsalt": "mixprec"}), files.replacing(path) as temporary:
        figure.savefig(temporary, format=suffix, metadata=metadata)
