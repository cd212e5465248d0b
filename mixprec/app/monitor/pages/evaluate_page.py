"""The evaluation of weights on the validation images of a run: accuracies, confusions, images with large losses."""

import asyncio
import functools
import json

from nicegui import ui

from mixprec.app.monitor import charts
from mixprec.app.monitor.pages import frame, inputs
from mixprec.app.monitor.pages.working import Work
from mixprec.base.messages import counted

_WORST = 48  # pictures


class Evaluation:
    """Chooses weights, and shows the results.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        run: :class:`mixprec.app.monitor.run_folder.Run`.
        weights: names of its files of weights, not empty.
    """

    def __init__(self, monitor, run, weights):
        self._tasks, self._work, self._run = monitor.tasks, Work(monitor), run
        with ui.row().classes("items-center"):
            self._weights = inputs.Choice(weights, value=weights[0], label="weights", on_change=self.show_last)
            ui.button("Evaluate", on_click=self.evaluate).props("flat dense no-caps").mark("evaluate")
            ui.button("End it", on_click=self._stop).props("flat dense no-caps").mark("stop")
        self.result, self._worst = ui.element("div"), ui.element("div")
        self._turn = 0  # number of the shown result: of two that overlap, the later one stays

    async def evaluate(self):
        """Evaluates the chosen weights in a separate process, which writes the file beside the run."""
        self._clear()
        answer = await self._work.into(self.result, "evaluate", self._wanted(), _result, shared=True)
        if answer is not None:
            await self._pictures(answer)

    async def show_first(self):
        """Shows the last evaluation when the page has been drawn, unless another was requested before."""
        if not self._turn:
            await self.show_last()

    async def show_last(self):
        """Shows the running evaluation of these weights, or the results of an earlier one, if there is one."""
        if self._tasks.is_shared("evaluate", self._wanted()):
            await self.evaluate()
            return
        self._clear()
        weights, turn = self._weights.value, self._turn
        name = f"evaluation-{weights.removesuffix('.npz')}.json"
        text = await asyncio.to_thread(self._run.text, name)
        if text is None or self._turn != turn:
            return
        try:
            answer = json.loads(text)
            with self.result:
                written, changed = self._run.changed(name), self._run.changed(weights)
                ui.label(f"written {frame.age(written)} ago").classes("faint")
                if written is not None and changed is not None and changed > written:
                    ui.label("These are numbers of older weights: the file has changed since. Evaluate again.")
                _result(answer)
            await self._pictures(answer)
        except Exception:  # the file is not an evaluation of ours
            self._clear()
            with self.result:
                ui.label(f"{name} cannot be read; evaluate again").classes("faint")

    def _clear(self):
        self._turn += 1
        for slot in (self.result, self._worst):
            self._work.leave(slot)
            slot.clear()

    def _wanted(self):
        return {"run": self._run.folder, "weights": self._weights.value}

    def _stop(self):
        self._tasks.stop("evaluate", self._wanted())

    async def _pictures(self, answer):
        worst = answer["worst"][:_WORST]
        wanted = {"run": self._run.folder, "indices": [row[0] for row in worst]}

        def show(found):
            frame.heading("Images with the largest loss: hard ones, and wrong labels")
            with ui.row().classes("q-gutter-none"):
                for image, (_, _, label, prediction, loss, _) in zip(found["images"], worst, strict=True):
                    taken = "" if prediction in (label, -1) else f", taken for {answer['classes'][prediction]}"
                    frame.picture(image["png"], f"{answer['classes'][label]}{taken}, loss {frame.number(loss)}")

        await self._work.into(self._worst, "images", wanted, show)


def _result(found):
    names, top5 = found["classes"], found["top5"]
    text = f"{counted(found['images'], 'image')}: top-1 {found['top1']:.4f}, loss {frame.number(found['loss'])}"
    ui.label(text + (f", top-5 {top5:.4f}" if top5 is not None else "")).mark("accuracy")
    ui.label(f"in {found['file']}").classes("faint")
    if found["confusion"] is not None:
        frame.figure(charts.confusion(found["confusion"], names), tall=True)
    with frame.columns():
        with frame.column():
            frame.heading("Most confused")
            rows = [(f"{names[true]}, taken for {names[wrong]}", count) for true, wrong, count in found["confused"]]
            frame.table(("class", "images"), rows)
        with frame.column():
            frame.heading("Classes")
            rows = [
                (name, images, f"{correct / images:.4f}" if images else "-", frame.number(loss))
                for name, (images, correct, loss) in zip(names, found["per_class"], strict=True)
            ]
            frame.table(("class", "images", "accuracy", "loss"), rows)


async def page(monitor, query):
    """Makes the page.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        query: query of the address, with the ``name`` of a listed run.
    """
    name = query.get("name", "")
    make = functools.partial(Evaluation, monitor)
    evaluation = await frame.with_weights(monitor, name, f"Evaluate {name}", "/evaluate", make)
    if evaluation is not None:
        ui.timer(0.1, evaluation.show_first, once=True)
