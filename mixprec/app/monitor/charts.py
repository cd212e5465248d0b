"""Options of the charts for ECharts: plain dicts, made from columns of the log."""

import math

from mixprec.app.monitor.log import sampled

# Legible on white and on black; the series have Okabe's and Ito's colours, which the colour-blind can distinguish.
_GREY = "#858585"
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6bb1", "#999933")
_ZERO, _SUBNORMAL, _OVERFLOW = -25, -14, 16  # log2 of magnitudes that FP16 flushes, begins to lose bits of, cannot hold
AXES = {"iteration": "iteration", "epoch": "epoch", "elapsed_time": "seconds"}

OTHERS = "other values"
_OF_VALIDATION = {"validation/main/accuracy": "validation", "validation/main/accuracy_top5": "validation, top 5"}
# title -> (base of a logarithmic y axis or None, {value of the log: label})
CURVES = {
    "loss": (None, {"main/loss": "training", "validation/main/loss": "validation"}),
    "accuracy": (None, {"main/accuracy": "training", **_OF_VALIDATION}),
    "learning rate": (None, {"lr": "learning rate"}),
    "loss scale": (2, {"loss_scale": "loss scale"}),
    "gradient norm": (10, {"gradient_norm": "gradient norm"}),
    "images/s": (None, {"images/s": "images/s"}),
    OTHERS: (None, {}),  # all others in the log, such as values of the user's own extensions
}
_KNOWN = {*AXES, "skipped"}.union(*(labels for _, labels in CURVES.values()))


def chart(title, series, x_name, base=None):
    """Returns the options of a line chart.

    Args:
        title: text.
        series: a dict from labels to lists of ``[x, y]``, ``y`` being ``None`` at a gap.
        x_name: name of the x axis.
        base: base of a logarithmic y axis; ``None`` for a linear one.

    Returns:
        dict
    """
    axis = {
        "axisLabel": {"color": _GREY},
        "nameTextStyle": {"color": _GREY},
        "axisLine": {"lineStyle": {"color": _GREY}},
        "splitLine": {"lineStyle": {"color": _GREY, "opacity": 0.2}},
    }
    linear = {"type": "value", "scale": True}
    return {
        "animation": False,
        "color": list(COLORS),
        "aria": {"enabled": True},
        "title": {"text": title, "textStyle": {"color": _GREY, "fontSize": 14, "fontWeight": "normal"}},
        "legend": {"show": len(series) > 1, "type": "scroll", "top": 24, "textStyle": {"color": _GREY}},
        "grid": {"left": 56, "right": 24, "top": 56, "bottom": 64},
        # Names of runs and classes are shown as text, never as HTML.
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
        "dataZoom": [{"type": "inside"}, {"type": "slider", "height": 16, "bottom": 8, "textStyle": {"color": _GREY}}],
        "xAxis": {**axis, **linear, "name": x_name, "nameLocation": "middle", "nameGap": 22},
        "yAxis": {**axis, **(linear if base is None else {"type": "log", "logBase": base})},
        "series": lines(series),
    }


def lines(series):
    """Returns the series of a line chart."""
    return [
        {"type": "line", "name": label, "data": points, "showSymbol": len(points) < 60, "symbolSize": 5}
        for label, points in series.items()
    ]


def curves(log, title, axis):
    """Returns the lines of one of :data:`CURVES`.

    Args:
        log: :class:`mixprec.app.monitor.log.Log`.
        title: title of the chart.
        axis: one of :data:`AXES`.

    Returns:
        dict from labels to lists of ``[x, y]``; on the chart of the loss scale also the entries with skipped steps.
    """
    base, labels = CURVES[title]
    if title == OTHERS:
        labels = {name: name for name in list(log.columns) if name not in _KNOWN}
    found = {label: points(log, name, axis, base) for name, label in labels.items() if name in log.columns}
    if title == "loss scale" and found:
        found["steps skipped"] = _skipped(log, log.values(axis))
    return found


def points(log, name, axis, base=None):
    """Returns a value of the log as ``[x, y]`` over one of :data:`AXES`; where the y axis is logarithmic, above 0."""
    values = log.values(name)
    if base is not None:
        values = [math.inf if value <= 0 else value for value in values]
    return sampled(log.values(axis), values)


def curve_chart(log, title, axis):
    """Returns the options of one of the charts of a run."""
    options = chart(title, curves(log, title, axis), AXES[axis], CURVES[title][0])
    for one in options["series"]:
        if one["name"] == "steps skipped":
            one.update(
                type="scatter", symbol="triangle", symbolSize=10, symbolOffset=[0, 9], itemStyle={"color": COLORS[4]}
            )
    return options


def _skipped(log, x):
    skipped, scale = log.values("skipped"), log.values("loss_scale")
    marks, before = [], 0.0
    for at, count, height in zip(x, skipped, scale, strict=True):
        if count > before and math.isfinite(height):
            marks.append([at, height])
        before = count if math.isfinite(count) else before
    return marks[-1000:]


def gradients(entries):
    """Returns the options of the histogram of gradients over time.

    Args:
        entries: list of the dicts of ``gradients.jsonl``, sorted by iteration.

    Returns:
        dict: a heatmap over iteration and magnitude, times the loss scale, as in the backward pass in FP16. Regions
        that FP16 flushes to zero, holds with fewer bits, and cannot hold are marked. ``None`` if there are no entries.
    """
    entries = entries[:: math.ceil(len(entries) / 200) or 1]
    cells, heights = [], set()
    for column, entry in enumerate(entries):
        shift = math.frexp(entry["loss_scale"])[1] - 1
        total = sum(entry["binades"]) or 1
        for offset, count in enumerate(entry["binades"]):
            if count:
                height = entry["lowest"] + offset + shift
                heights.add(height)
                cells.append([column, height, round(math.log10(count / total), 2)])
    if not cells:
        return None
    low, high = min(*heights, _ZERO - 3), max(*heights, _OVERFLOW + 1)
    options = chart("gradients times the loss scale: share of each magnitude", {}, "iteration")
    options["grid"]["left"] = 64
    options["xAxis"].update(type="category", data=[str(entry["iteration"]) for entry in entries])
    options["yAxis"].update(type="category", data=[f"2^{height}" for height in range(low, high + 1)])
    options["yAxis"]["axisLabel"] = {"color": _GREY, "interval": 4}
    options["tooltip"] = {"show": False}
    options["visualMap"] = {
        "min": -6,
        "max": 0,
        "calculable": False,
        "orient": "horizontal",
        "left": "right",
        "top": 0,
        "itemHeight": 80,
        "text": ["all", "1e-6"],
        "textStyle": {"color": _GREY},
        "inRange": {"color": ["#cfe3f1", "#0072b2", "#00263d"]},
    }
    areas = [
        ("becomes zero", low, _ZERO, "#d55e00"),
        ("subnormal", _ZERO, _SUBNORMAL, "#e69f00"),
        ("overflow", _OVERFLOW, high + 1, "#d55e00"),
    ]
    options["series"] = [
        {
            "type": "heatmap",
            "name": "gradients",
            "data": [[column, height - low, share] for column, height, share in cells],
            "markArea": {
                "silent": True,
                "label": {"color": _GREY, "position": "insideLeft"},
                "data": [
                    [
                        {"name": name, "yAxis": bottom - low, "itemStyle": {"color": color, "opacity": 0.12}},
                        {"yAxis": min(top, high) - low},
                    ]
                    for name, bottom, top, color in areas
                ],
            },
        }
    ]
    return options


def confusion(matrix, classes):
    """Returns the options of a confusion matrix.

    Args:
        matrix: list of lists of numbers of images: rows are classes, columns are predictions.
        classes: list of their names.

    Returns:
        dict
    """
    options = chart("confusion: images of each class, by prediction", {}, "prediction")
    names = [name[:24] for name in classes]
    most = max((max(row, default=0) for row in matrix), default=0) or 1
    options["dataZoom"] = []
    options["grid"] = {"left": 100, "right": 24, "top": 48, "bottom": 100}
    options["xAxis"].update(type="category", data=names, nameGap=80, axisLabel={"color": _GREY, "rotate": 60})
    options["yAxis"].update(type="category", data=names, inverse=True, name="class")
    options["tooltip"]["trigger"] = "item"
    options["visualMap"] = {"show": False, "min": 0, "max": most, "inRange": {"color": ["#dbe9f4", "#56a5d8"]}}
    options["series"] = [
        {
            "type": "heatmap",
            "name": "images",
            "label": {"show": len(classes) <= 20, "color": "#111"},
            "data": [[x, y, count] for y, row in enumerate(matrix) for x, count in enumerate(row) if count],
        }
    ]
    return options
