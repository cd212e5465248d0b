"""The bar chart of a run: images a second in groups of a batch size, and what each optimization is worth."""

import re

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.bars.record import GROUPS
from mixprec import files

# A part of a colour map for each group, so that neighbours in it differ.
_COLOURS = {
    "plain": ("Greys", 0.35, 0.75),
    "config": ("YlGnBu", 0.3, 0.95),
    "precision": ("RdPu", 0.4, 0.8),
    "ablation": ("Blues", 0.4, 0.9),  # of batch sizes
    "peer": ("YlOrRd", 0.25, 0.9),
}
_WIDTH = 14  # inches
_HEIGHT = 5.5  # of the groups
_LINE = 0.13  # of a bar of the ablations
_ROOM = 0.82  # of the distance from group to group is for bars
_POINTS = 0.66 * _WIDTH * 72 * _ROOM  # are for the bars of all groups, the rest for the legend
_LARGEST, _SMALLEST = 8.5, 4.5  # points, of the numbers above bars
_WIDEST = 3.4  # of a number, as a multiple of its height
_UNMEASURED = {"style": "italic", "color": "dimgrey"}
_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}  # behind what may stand on a line
_LONGEST = 22  # characters of a reason that stands in the chart as it is


def save(path, record):
    """Draws a run; the same record gives the same file.

    Args:
        path: of the picture, a PNG.
        record: see :mod:`benchmarks.bars.record`.
    """
    with files.replacing(path) as temporary:
        figure(record).savefig(temporary, format="png", metadata={"Software": None})  # no version of matplotlib


@matplotlib.rc_context({"text.parse_math": False})  # a $ in a name is a $
def figure(record):
    """Returns the ``matplotlib.figure.Figure``: axes of the groups, and below those of the ablations, if there are any.

    An ablation of what is not in the record is a bar of the groups.

    Args:
        record: see :mod:`benchmarks.bars.record`.
    """
    measured = {row["name"] for row in record["rows"]}
    ablations = [name for name in _names(record, "ablation") if name.partition(", ")[0] in measured]
    batches = record["settings"]["batch"]
    heights = [_HEIGHT, 1.2 + _LINE * len(ablations) * (len(batches) + 1.5)] if ablations else [_HEIGHT]
    drawn = Figure(figsize=(_WIDTH, 0.6 + sum(heights)), dpi=100, layout="constrained")
    drawn.suptitle(_title(record), fontsize="medium")
    panels = drawn.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _groups(panels[0], record, [name for group in GROUPS for name in _names(record, group) if name not in ablations])
    if ablations:
        _ablations(panels[1], record, ablations)
    return drawn


def short(reason):
    """Returns the reason why a row was not measured in words that fit below a bar."""
    if re.search(r"out ?of ?memory|MemoryError|ALLOC_FAILED", reason, re.IGNORECASE):
        return "out of memory"
    what = re.sub(r"^block \d+ of \d+: ", "", reason).partition(": ")[0]
    return what if len(what) <= _LONGEST else "not measured"


def _title(record):
    settings = record["settings"]
    end = "" if record["complete"] else ", the run has not come to its end"
    where = record["device"] if record["kind"] == "gpu" else record["cpu"]
    return (
        f"{settings['arch']}, {settings['size']}x{settings['size']} pixels, training on synthetic data\n"
        f"{where}; {record['date'][:10]}{end}"
    )


def _names(record, group):
    """The names of the rows of a group, in their order."""
    return list(dict.fromkeys(row["name"] for row in record["rows"] if row["group"] == group))


def _shades(group, number):
    colours, first, last = _COLOURS[group]
    return [
        matplotlib.colormaps[colours](first + (last - first) * place / max(1, number - 1)) for place in range(number)
    ]


def _groups(axes, record, names):
    """Images a second: a group for each batch size, a colour for each row."""
    batches = record["settings"]["batch"]
    rows = {(row["batch"], row["name"]): row for row in record["rows"]}
    colours = {}
    for group in GROUPS:
        own = _names(record, group)
        colours |= dict(zip(own, _shades(group, len(own)), strict=True))
    width = _ROOM / max(1, len(names))
    points = _POINTS / max(1, len(batches) * len(names))
    for number, name in enumerate(names):
        for place, batch in enumerate(batches):
            row = rows.get((batch, name))
            if row is not None:
                x = place + (number - (len(names) - 1) / 2) * width
                _bar(axes, x, width, row, colours[name], points)
    axes.set_xticks(range(len(batches)), [f"batch {batch}" for batch in batches])
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(batches) - 0.5)
    highest = max((row["maximum"] for row in rows.values() if row["name"] in names and not row["reason"]), default=1)
    axes.set_ylim(0, 1.12 * highest)  # the numbers stand above the bars
    axes.set_ylabel("images/s")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    _legend(axes, [colours[name] for name in names], names)


def _bar(axes, x, width, row, colour, points):
    """A bar with its number, which is so many points wide, or the reason why there is none."""
    size = min(_LARGEST, 0.9 * points)
    if row["reason"]:
        style = _UNMEASURED | {"fontsize": max(size, _SMALLEST)}
        _text(axes, short(row["reason"]), (x, 0), (0, 3), rotation=90, ha="center", va="bottom", **style)
        return
    spread = [[row["median"] - row["minimum"]], [row["maximum"] - row["median"]]]
    axes.bar([x], [row["median"]], width, color=[colour], yerr=spread, error_kw={"elinewidth": 0.8})
    if size >= _SMALLEST:
        upright = {"rotation": 90} if points < _WIDEST * size else {}
        text = f"{row['median']:,.0f}" if row["median"] >= 100 else f"{row['median']:.1f}"
        _text(axes, text, (x, row["maximum"]), (0, 3), ha="center", va="bottom", fontsize=size, **upright)


def _ablations(axes, record, names):
    """Images a second in percent of those with everything on, which are the row of that name up to the comma."""
    batches = record["settings"]["batch"]
    rows = {(row["batch"], row["name"]): row for row in record["rows"]}
    width = 1 / (len(batches) + 1.5)
    colours = _shades("ablation", len(batches))
    axes.axvline(100, color="black", linewidth=0.8)
    highest = 100.0
    for place, (batch, colour) in enumerate(zip(batches, colours, strict=True)):
        for number, name in enumerate(names):
            y = number + (place - (len(batches) - 1) / 2) * width
            row, base = rows.get((batch, name)), rows.get((batch, name.partition(", ")[0]))
            if row is None:
                continue
            reason = short(row["reason"]) if row["reason"] else "" if base and base["median"] else "nothing to compare"
            if reason:
                _text(axes, reason, (0, y), (3, 0), ha="left", va="center", fontsize=7.5, **_UNMEASURED)
                continue
            median, low, high = (100 * row[key] / base["median"] for key in ("median", "minimum", "maximum"))
            spread = [[median - low], [high - median]]
            axes.barh([y], [median], width, color=[colour], xerr=spread, error_kw={"elinewidth": 0.8})
            _text(axes, f"{median:.0f}%", (high, y), (3, 0), ha="left", va="center", fontsize=7.5, bbox=_WHITE)
            highest = max(highest, high)
    axes.set_yticks(range(len(names)), [name.partition(", ")[2] for name in names])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first at the top
    axes.set_xlim(0, 1.08 * highest)
    axes.set_xlabel(f"images/s, % of {names[0].partition(', ')[0]}")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _legend(axes, colours, [f"batch {batch}" for batch in batches])


def _legend(axes, colours, names):
    """Beside the axes, also with what was not measured."""
    patches = [Patch(color=colour, label=name) for name, colour in zip(names, colours, strict=True)]
    place = {"loc": "upper left", "bbox_to_anchor": (1.005, 1), "borderaxespad": 0}
    axes.legend(handles=patches, fontsize="small", frameon=False, **place)


def _text(axes, text, place, offset, **style):
    """Writes so many points beside a place."""
    axes.annotate(text, place, offset, textcoords="offset points", **style)
