"""One run: its curves as they grow, its gradients, its settings and reports."""

import asyncio

from nicegui import ui

from mixprec.app.monitor import charts
from mixprec.app.monitor.pages import frame, inputs
from mixprec.app.monitor.run_folder import differences

_SECONDS = 1.0
_TEXTS = {
    "config": "config.yaml",
    "conversion": "conversion.txt",
    "captured steps": "capture.txt",
    "environment": "environment.txt",
    "skipped images": "skipped.txt",
}


class Curves:
    """The charts of a run, which follow its log.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        run: :class:`mixprec.app.monitor.run_folder.Run`.
    """

    def __init__(self, monitor, run):
        self._monitor, self._run, self._version, self._gradients = monitor, run, None, None
        self._state = ui.label().classes("faint").mark("state")
        self._axis = inputs.Toggle(charts.AXES, value="epoch", on_change=self._again).props("dense no-caps")
        self._figures = {}
        with frame.columns():
            for title, (base, _) in charts.CURVES.items():
                with frame.column():
                    self._figures[title] = frame.figure(charts.chart(title, {}, "", base))
        self._histogram = ui.element("div")

    async def refresh(self):
        """Shows the current contents of the files."""
        log, version, curves = await asyncio.to_thread(self._monitor.curves, self._run, self._axis.value or "epoch")
        row = await asyncio.to_thread(self._monitor.row, self._run)
        gradients = await self._show_gradients()
        self._state.text = _summary(row, log, gradients)
        if version == self._version:
            return
        self._version = version
        for title, figure in self._figures.items():
            options = curves[title]
            figure.options["series"], figure.options["legend"] = options["series"], options["legend"]
            figure.options["xAxis"] = options["xAxis"]
            figure.update()

    async def _again(self):
        self._version = None
        await self.refresh()

    async def _show_gradients(self):
        log = await asyncio.to_thread(self._monitor.gradients, self._run)
        if log.version != self._gradients:
            with log.lock:
                version, entries = log.version, list(log.entries)
            self._gradients = version
            self._histogram.clear()
            options = charts.gradients(entries)
            if options is not None:
                with self._histogram:
                    frame.figure(options, tall=True)
        return log


def _summary(row, log, gradients):
    parts = [row.state]
    if row.epoch is not None:
        parts.append(f"epoch {row.epoch:.2f}" + (f" of {row.epochs:g}" if row.epochs is not None else ""))
    iteration = log.last.get("iteration")
    if iteration is not None:
        parts.append(f"iteration {iteration:.0f}")
    for value, text in ((row.last, "accuracy {:.4f}"), (row.best, "best {:.4f}"), (row.speed, "{:.1f} images/s")):
        if value is not None:
            parts.append(text.format(value))
    if row.left is not None:
        parts.append(f"{frame.span(row.left)} left")
    if log.damaged:
        parts.append(f"{log.damaged} lines of log.jsonl cannot be read")
    text = ", ".join(parts)
    for name, each in (("log.jsonl", log), ("gradients.jsonl", gradients)):
        text += frame.reading(each.share, name)
        if each.problem:
            text += f", {name} cannot be read now: {each.problem}"
    return text


def _settings(monitor, run):
    """The config, or its differences from another run's config."""
    others = [row.name for row in monitor.runs.rows if row.name != run.name][:500]
    with ui.element("div"):
        chosen = inputs.Choice(others, label="differences to", with_input=True, clearable=True).classes("full-width")
        found = ui.element("div")

    def show(event):
        found.clear()
        other = monitor.runs.get(event.value) if event.value else None
        if other is not None:
            rows = differences([run.config, other.config])
            with found:
                frame.table(("key", run.name, other.name), rows) if rows else ui.label("Both have the same settings.")

    chosen.on_value_change(show)


def _report(run, title, file):
    """A text of the run, read when it is opened: most users leave the page without opening it."""

    async def show(event):
        text = await asyncio.to_thread(run.text, file) if event.value else None
        slot.clear()
        if text is not None and expansion.value:
            with slot:
                frame.plain(text)

    with inputs.Expansion(title, on_value_change=show).classes("full-width") as expansion:
        slot = ui.element("div")


async def page(monitor, query):
    """Makes the page.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        query: query of the address, with the ``name`` of a listed run.
    """
    name = query.get("name", "")
    await asyncio.to_thread(monitor.runs.refresh, _SECONDS)
    with frame.frame(monitor, name or "Run", "/run"):
        run = frame.listed(monitor, name)
        if run is None:
            return
        with ui.row():
            ui.link("Evaluate", frame.link_to("/evaluate", name=name))
            ui.link("Look inside", frame.link_to("/inside", name=name))
            ui.link("Data and schedule", frame.link_to("/before", run=name))
            ui.link("Compare", frame.link_to("/compare", name=[name]))
        curves = Curves(monitor, run)
        _settings(monitor, run)
        there = await asyncio.to_thread(lambda: [run.size(file) for file in _TEXTS.values()])
        for (title, file), size in zip(_TEXTS.items(), there, strict=True):
            if size:
                _report(run, title, file)
    await curves.refresh()
    ui.timer(_SECONDS, curves.refresh, immediate=False)
