"""Several runs in one chart, and the settings in which they differ."""

import asyncio

from nicegui import ui

from mixprec.app.monitor import charts
from mixprec.app.monitor.pages import frame, inputs
from mixprec.app.monitor.run_folder import differences

_SECONDS = 2.0
_MOST = 12  # runs in a chart
_VALUES = {
    "validation accuracy": ("validation/main/accuracy", None),
    "accuracy": ("main/accuracy", None),
    "loss": ("main/loss", None),
    "validation loss": ("validation/main/loss", None),
    "learning rate": ("lr", None),
    "loss scale": ("loss_scale", 2),
    "gradient norm": ("gradient_norm", 10),
    "images/s": ("images/s", None),
}


class Comparison:
    """The chart and the table.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        names: names of the runs.
    """

    def __init__(self, monitor, names):
        self._monitor, self._versions = monitor, None
        names = [name for name in names if monitor.runs.get(name) is not None][:_MOST]
        listed = list(dict.fromkeys([*names, *(row.name for row in monitor.runs.rows)]))[:500]
        self._names = inputs.Choice(
            listed, label=f"runs, {_MOST} at most", multiple=True, value=names, on_change=self.refresh, with_input=True
        )
        self._names.props("use-chips max-values=12").classes("full-width").mark("runs")
        with ui.row():
            self._value = inputs.Choice(
                list(_VALUES), value="validation accuracy", label="value", on_change=self.refresh
            )
            self._axis = inputs.Choice(charts.AXES, value="epoch", label="over", on_change=self.refresh)
        self._reading = ui.label().classes("faint")
        self._chart, self._differences = ui.element("div"), ui.element("div")

    async def refresh(self):
        """Draws the chart, if its data has changed."""
        runs = [run for run in map(self._monitor.runs.get, self._names.value[:_MOST]) if run is not None]
        title = self._value.value or "validation accuracy"
        name, base = _VALUES[title]
        axis = self._axis.value or "epoch"
        found = [await asyncio.to_thread(self._monitor.points, run, name, axis, base) for run in runs]
        shares = [frame.reading(log.share, run.name) for run, (log, _, _) in zip(runs, found, strict=True)]
        self._reading.text = "".join(shares).removeprefix(", ")
        versions = [version for _, version, _ in found], [run.name for run in runs], name, axis
        if versions == self._versions:
            return
        is_same = self._versions is not None and versions[1:] == self._versions[1:]
        self._versions = versions
        series = {run.name: points for run, (_, _, points) in zip(runs, found, strict=True)}
        if is_same:
            self._figure.options["series"] = charts.lines(series)
            self._figure.update()
            return
        self._chart.clear()
        with self._chart:
            self._figure = frame.figure(charts.chart(title, series, charts.AXES[axis], base), tall=True)
        self._differences.clear()
        rows = await asyncio.to_thread(lambda: differences([run.config for run in runs]))
        with self._differences:
            if rows:
                frame.heading("Settings that differ")
                frame.table(("key", *(run.name for run in runs)), rows, pagination=50)


async def page(monitor, query):
    """Makes the page.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        query: query of the address, with the ``name`` of each run; runs that are not listed are left out.
    """
    await asyncio.to_thread(monitor.runs.refresh, _SECONDS)
    with frame.frame(monitor, "Compare", "/compare"):
        comparison = Comparison(monitor, query.getlist("name"))
    await comparison.refresh()
    ui.timer(_SECONDS, comparison.refresh, immediate=False)
