"""Plots of a run, drawn from its log.

The trainer calls :class:`Plots` after each entry of the log.
"""

import os

from chainer.training import extension

from mixprec.base import files
from mixprec.training.pictures import Pictures

_OF_VALIDATION = {"validation/main/accuracy": "validation", "validation/main/accuracy_top5": "validation, top 5"}
# file name -> (title, base of the y axis if that is logarithmic, {key of the log: label})
_PLOTS = {
    "loss.png": ("loss", None, {"main/loss": "training", "validation/main/loss": "validation"}),
    "accuracy.png": ("accuracy", None, {"main/accuracy": "training", **_OF_VALIDATION}),
    "learning_rate.png": ("learning rate", None, {"lr": "learning rate"}),
    "loss_scale.png": ("loss scale", 2, {"loss_scale": "loss scale"}),
    "gradient_norm.png": ("gradient norm, unscaled", 10, {"gradient_norm": "gradient norm"}),
    "images_per_second.png": ("images/s in training", None, {"images/s": "images/s"}),
}


class Plots(extension.Extension):
    """Draws the curves of a run over its epochs, at the trigger of the log.

    They are loss, accuracy, learning rate, loss scale, gradient norm and images/s. The points come from the log, so
    that they cover the whole run also after a resume. Drawing takes at most 5 % of the time; plots that were left out
    are drawn at the end of training.

    Args:
        log_report: Chainer's :class:`~chainer.training.extensions.LogReport`.
        steps: :class:`mixprec.training.schedule.Steps` of the run, which places the entries on the x axis.
    """

    priority = extension.PRIORITY_READER - 1

    def __init__(self, log_report, steps):
        self._log_report = log_report
        self._steps = steps
        self._pictures = Pictures()

    def __call__(self, trainer):
        self._pictures.draw(lambda: self._write(trainer.out))

    def finalize(self):
        self._pictures.finish()

    def _write(self, folder):
        for name, (title, base, curves) in _PLOTS.items():
            figure = self._draw(title, base, curves)
            with files.replacing(os.path.join(folder, name)) as temporary:
                figure.savefig(temporary)

    def _draw(self, title, base, curves):
        from matplotlib.figure import Figure  # takes a second: most commands draw nothing

        figure = Figure(figsize=(6, 4), dpi=120, layout="constrained")
        axes = figure.subplots()
        for key, label in curves.items():
            points = [
                (self._steps.start(entry["iteration"]), entry[key]) for entry in self._log_report.log if key in entry
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker="." if len(points) < 100 else None, label=label)
        axes.set(title=title, xlabel="epoch")
        if base:
            axes.set_yscale("log", base=base)
        axes.grid(alpha=0.3)
        if len(axes.get_lines()) > 1:
            axes.legend()
        return figure
