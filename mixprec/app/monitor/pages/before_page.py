"""Before the start: the learning rate of a config, its classes and images, and the augmentation of one."""

import asyncio

from nicegui import ui

from mixprec.app.monitor import charts
from mixprec.app.monitor.pages import frame, inputs
from mixprec.app.monitor.pages.working import Work


class Preview:
    """The schedule and data of a config, computed by other processes.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        run: name of a run whose config is shown first; empty for none.
    """

    def __init__(self, monitor, run):
        self._work = Work(monitor)
        self._paths = monitor.configs("run", run)
        first = f"run {run}" if f"run {run}" in self._paths else None
        self._config = inputs.Choice(
            list(self._paths), label="config", value=first, with_input=True, on_change=self.show
        )
        self._config.classes("full-width").mark("config")
        self._overrides = inputs.Lines("settings that override it, section.key=value, one per line").props("dense")
        self._overrides.classes("full-width").visible = monitor.jobs is not None
        self._images = inputs.Number("training images, if they are not here", min=1, format="%d").props("dense")
        with ui.row():
            ui.button("Show", on_click=self.show).props("flat dense no-caps").mark("show")
        self._schedule, self._data, self._augmented = (ui.element("div") for _ in range(3))

    async def show(self):
        """Shows schedule and data of the chosen config."""
        if self._config.value is None:
            return
        chosen = {"config": self._paths[self._config.value], "overrides": (self._overrides.value or "").splitlines()}
        images = int(self._images.value) if self._images.value else None
        await asyncio.gather(
            self._work.into(self._schedule, "schedule", {**chosen, "images": images}, _schedule),
            self._work.into(self._data, "data", chosen, lambda found: self._show_data(found, chosen)),
        )

    def _show_data(self, found, chosen):
        if found.get("problem"):
            ui.label(found["problem"])
        with frame.columns():
            for name in ("train", "val"):
                if found.get(name):
                    with frame.column():
                        _classes(name, found[name])
        self._augmented.clear()
        if found.get("train"):
            _examples(found.get("examples", []))
            with self._augmented:
                frame.heading("What augmentation does to an image")
                index = inputs.Number("image", value=0, min=0, max=found["train"]["images"] - 1, format="%d").props(
                    "dense"
                )
                variants = ui.element("div")

                async def augment():
                    wanted = {**chosen, "index": int(index.value or 0), "count": 8}
                    await self._work.into(variants, "augment", wanted, _variants)

                ui.button("Augment", on_click=augment).props("flat dense no-caps").mark("augment")


def _schedule(found):
    lines = {"learning rate": [[epoch, rate] for epoch, _, rate in found["points"]]}
    frame.figure(charts.chart("learning rate", lines, "epoch"))
    ui.label(f"{found['text']}; {found['steps_per_epoch']} steps in an epoch").classes("faint")


def _classes(name, found):
    frame.heading(f"{found['images']} images in {'training' if name == 'train' else 'validation'}")
    frame.table(("class", "images"), found["classes"])
    if found["skipped_count"]:
        with inputs.Expansion(f"{found['skipped_count']} files are left out").classes("full-width"):
            frame.table(("file", "reason"), found["skipped"])


def _examples(examples):
    frame.heading("Examples")
    with ui.row().classes("q-gutter-none"):
        for shown in examples:
            for image in shown["images"]:
                frame.picture(image["png"], shown["class"])


def _variants(found):
    ui.label(found["name"]).classes("faint")
    with ui.row().classes("q-gutter-none"):
        frame.picture(found["original"], "as it is stored")
        for png in found["variants"]:
            frame.picture(png, "as in training")


async def page(monitor, query):
    """Makes the page.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        query: query of the address, which may have the name of a ``run``.
    """
    run = query.get("run", "")
    await asyncio.to_thread(monitor.runs.refresh, 1.0)
    with frame.frame(monitor, "Before the start", "/before"):
        preview = Preview(monitor, run)
    if run:
        ui.timer(0.1, preview.show, once=True)
