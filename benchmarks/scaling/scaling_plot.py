"""The picture of ``scripts/benchmark.py scaling``: the model, and below it what was measured on this machine."""

from matplotlib.figure import Figure

from mixprec import files

_STYLES = ("-", "--", ":")  # of routes
_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}  # behind text on lines
_LEGEND = {"fontsize": "small", "loc": "upper left", "bbox_to_anchor": (1.005, 1), "borderaxespad": 0}
_GAP = 0.4  # of the distance between two groups of bars


def save(path, record):
    """Draws a record of the command; the same record gives the same file.

    Args:
        path: of the picture, a PNG.
        record: dict for JSON, with ``"model"``, ``"measured"`` or both.
    """
    parts = [(draw, record[name]) for name, draw in (("model", _model), ("measured", _measured)) if name in record]
    figure = Figure(figsize=(13, 4.5 * len(parts)), dpi=100, layout="constrained")
    for axes, (draw, part) in zip(figure.subplots(len(parts), 1, squeeze=False)[:, 0], parts, strict=True):
        draw(axes, part)
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})  # no version of matplotlib


def _model(axes, model):
    batches = dict.fromkeys(row["batch"] for row in model["rows"])
    routes = dict.fromkeys(row["route"] for row in model["rows"])
    for colour, batch in enumerate(batches):
        for style, route in zip(_STYLES, routes, strict=True):
            rows = [row for row in model["rows"] if (row["batch"], row["route"]) == (batch, route)]
            gpus, values = [row["gpus"] for row in rows], [row["model"] for row in rows]
            axes.plot(gpus, values, style, color=f"C{colour}", label=f"model: H200, batch {batch}, {route}")
            if style == "-":
                low, high = ([value + sign * model["error"] for value in values] for sign in (-1, 1))
                axes.fill_between(gpus, low, high, color=f"C{colour}", alpha=0.15)
    for number, check in enumerate(model["checks"]):
        gpus, first = check["gpus"], number == 0
        ends = sorted((check["published"], check["model"]))
        axes.plot([gpus] * 2, ends, color="black", linewidth=0.8)
        side = -1 if number % 2 == 0 else 1  # two of them are neighbours
        place = {"xytext": (8 * side, 0), "textcoords": "offset points", "ha": "right" if side < 0 else "left"}
        axes.annotate(check["name"], (gpus, sum(ends) / 2), va="center", fontsize="small", bbox=_BOX, **place)
        axes.plot(gpus, check["published"], "D", color="black", label="published" if first else None)
        axes.plot(gpus, check["model"], "o", color="black", fillstyle="none", label="model of it" if first else None)
    title = f"Data parallel training of ResNet-50: a model, nothing of it is measured; +- {model['error']:.1f} points"
    axes.set_title(title, fontsize="medium")
    axes.set(xlabel="GPUs", ylabel="efficiency, % of one GPU", ylim=(0, 105), xscale="log")
    ticks = sorted({row["gpus"] for row in model["rows"]})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(**_LEGEND)


def _measured(axes, measured):
    groups = list(dict.fromkeys((row["scaling"], row["ranks"]) for row in measured["rows"]))
    names = list(dict.fromkeys(row["name"] for row in measured["rows"]))
    width = (1 - _GAP) / len(names)
    for number, name in enumerate(names):
        rows = [row for row in measured["rows"] if row["name"] == name]
        places = [groups.index((row["scaling"], row["ranks"])) + (number + 0.5) * width for row in rows]
        values = [100 * row["efficiency"] for row in rows]
        errors = [
            [100 * (row["efficiency"] - row["lowest"]) for row in rows],
            [100 * (row["highest"] - row["efficiency"]) for row in rows],
        ]
        axes.bar(places, values, width, yerr=errors, label=name, error_kw={"elinewidth": 0.8})
    places = [place + (1 - _GAP) / 2 for place in range(len(groups))]
    axes.set_xticks(places, [f"{scaling}, {ranks} ranks" for scaling, ranks in groups])
    axes.set_title(f"Measured: {measured['title']}", fontsize="medium")
    axes.set_ylabel("efficiency, % of one process")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(**_LEGEND)
