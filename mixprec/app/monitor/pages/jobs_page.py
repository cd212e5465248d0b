"""Starts, stops and clones runs, where the server was started with ``--allow-jobs``."""

import asyncio
import datetime

from nicegui import ui

from mixprec.app.monitor.jobs import JobError
from mixprec.app.monitor.pages import frame, inputs
from mixprec.app.monitor.run_folder import RUNNING

_SECONDS = 2.0


class Desk:
    """The form, and the jobs.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`, with jobs.
    """

    def __init__(self, monitor):
        self._monitor, self._shown = monitor, None
        self._paths = monitor.configs("clone")
        frame.heading("Start")
        self._config = inputs.Choice(list(self._paths), label="config, or a run to clone", with_input=True)
        self._name = inputs.Text("name of the new run", value=f"job/{datetime.datetime.now():%Y%m%d-%H%M%S}")
        self._overrides = inputs.Lines("settings that override it, section.key=value, one per line")
        for part in (self._config, self._name, self._overrides):
            part.props("dense").classes("full-width")
        ui.button("Start", on_click=self._start).props("flat dense no-caps").mark("start")
        frame.heading("Stop")
        with ui.row().classes("items-center"):
            self._running = inputs.Choice([], label="runs on this machine").props("dense").style("min-width: 16em")
            ui.button("Stop and save", on_click=self._stop).props("flat dense no-caps").mark("stop")
        frame.heading("Jobs of this server")
        self._jobs = ui.element("div")

    async def refresh(self):
        """Shows what runs."""
        rows = await asyncio.to_thread(self._monitor.runs.refresh, _SECONDS / 2)
        self._running.set_options([row.name for row in rows if row.state in RUNNING])
        jobs = await asyncio.to_thread(self._monitor.jobs.rows)
        if jobs != self._shown:
            self._shown = jobs
            self._jobs.clear()
            with self._jobs:
                if not jobs:
                    ui.label("none").classes("faint")
                for name, state, text in jobs:
                    ui.label(f"{name}: {state}")
                    frame.plain(text)

    async def _start(self):
        try:
            if self._config.value is None:
                raise JobError("choose a config")
            path = self._paths[self._config.value]
            self._monitor.jobs.start(path, (self._name.value or "").strip(), (self._overrides.value or "").splitlines())
        except JobError as error:
            ui.notify(str(error), type="negative")
        else:
            await self.refresh()

    def _stop(self):
        run = self._monitor.runs.get(self._running.value)
        try:
            if run is None:
                raise JobError("choose a run")
            self._monitor.jobs.stop(run)
            ui.notify(f"{run.name} finishes its step and saves.")
        except JobError as error:
            ui.notify(str(error), type="negative")


async def page(monitor, query):
    """Makes the page, which takes no query; without jobs it explains how to allow them."""
    await asyncio.to_thread(monitor.runs.refresh, 1.0)
    with frame.frame(monitor, "Jobs", "/jobs"):
        if monitor.jobs is None:
            ui.label("This server is read-only. With --allow-jobs it starts and stops runs.")
            return
        desk = Desk(monitor)
    await desk.refresh()
    ui.timer(_SECONDS, desk.refresh, immediate=False)
