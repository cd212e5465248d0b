"""The inside of a network for an image: classes, outputs of layers, weights, and the losses of FP16."""

import base64
import functools

from nicegui import ui

from mixprec.app.monitor.access import LARGEST_UPLOAD
from mixprec.app.monitor.pages import frame, inputs
from mixprec.app.monitor.pages.working import Work

_SHOWN = 8  # layers whose pictures are shown first
_NUMBERS = ("minimum", "maximum", "mean", "std")
_SHARES = ("zeros", "fp16_zeros", "subnormals", "overflows")
_HEADINGS = ("layer", "type", "shape", "min", "max", "mean", "std", "zeros", "FP16 zeros", "FP16 subnormal", "overflow")


class Inside:
    """Takes an image, and shows the results.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        run: :class:`mixprec.app.monitor.run_folder.Run`.
        weights: names of its files of weights, not empty.
    """

    def __init__(self, monitor, run, weights):
        self._work, self._run = Work(monitor), run
        self._weights = inputs.Choice(weights, value=weights[0], label="weights")
        self.upload = ui.upload(
            label="an image", auto_upload=True, max_file_size=LARGEST_UPLOAD, on_upload=self.look, on_rejected=_rejected
        )
        self.upload.props('accept="image/*" flat bordered').classes("full-width")
        self._result = ui.element("div")

    async def look(self, event):
        """Computes and shows; the image is decoded in another process only."""
        data = await event.file.read()
        image = base64.b64encode(data).decode()
        wanted = {"run": self._run.folder, "weights": self._weights.value, "image": image}
        self.upload.reset()
        await self._work.into(self._result, "inside", wanted, _show)


def _rejected():
    ui.notify(f"An image of {LARGEST_UPLOAD / 1e6:g} MB at most, please.")


def _show(found):
    frame.table(("class", "share"), [(name, frame.number(share, "{:.4f}")) for name, share in found["top"]]).mark("top")
    frame.heading("Outputs of layers")
    drawn = {layer["name"]: layer for layer in found["layers"] if layer.get("png")}
    chosen = inputs.Choice(list(drawn), value=list(drawn)[:_SHOWN], multiple=True, label="layers").props("use-chips")
    chosen.classes("full-width").mark("layers")
    pictures = ui.row()

    def draw():
        pictures.clear()
        with pictures:
            for name in chosen.value:
                layer = drawn[name]
                frame.picture(layer["png"], f"{name}, {layer['type']} {_shape(layer)}", of_grid=True)

    chosen.on_value_change(draw)
    draw()
    frame.heading("In numbers, and the share that FP16 makes zero, rounds coarsely, or cannot hold")
    rows = [
        (
            layer["name"],
            layer["type"],
            _shape(layer),
            *(frame.number(layer[key], "{:.3g}") for key in _NUMBERS),
            *(frame.number(layer[key], "{:.3%}") for key in _SHARES),
        )
        for layer in found["layers"]
    ]
    frame.table(_HEADINGS, rows, pagination=20)
    frame.heading("Weights")
    with ui.row():
        for weight in found["weights"]:
            if weight["png"] is not None:
                frame.picture(weight["png"], f"{weight['name']} {_shape(weight)}", of_grid=True)


def _shape(part):
    return "x".join(map(str, part["shape"]))


async def page(monitor, query):
    """Makes the page.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
        query: query of the address, with the ``name`` of a listed run.
    """
    name = query.get("name", "")
    make = functools.partial(Inside, monitor)
    await frame.with_weights(monitor, name, f"Look inside {name}", "/inside", make)
