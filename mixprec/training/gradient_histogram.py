"""A picture of the distribution of gradients over the range of FP16, with and without loss scaling, and its numbers."""

import math
import os

import numpy as np
from chainer.training import extension

from mixprec.base import arguments, files
from mixprec.training.gradient_counts import LARGEST_FLUSHED, LOWEST, SMALLEST_NORMAL, SMALLEST_OVERFLOW, summarize
from mixprec.training.gradient_log import FILE, GradientLog
from mixprec.training.pictures import Pictures

_SCALED, _UNSCALED = "#1f5fa8", "#e08a1e"
_WITH_SCALE, _WITHOUT_SCALE = "times the loss scale", "without scaling"
_LEGEND = {"ncols": 4, "fontsize": 8, "frameon": False}
_SMALLEST_SHARE = 0.001  # in %; the y axis of the histogram begins here
# name of a region, its upper end, its color
_REGIONS = (
    ("becomes zero", LARGEST_FLUSHED, "#f6d5d2"),
    ("subnormal", SMALLEST_NORMAL, "#fbf0cf"),
    ("normal", SMALLEST_OVERFLOW, "#e2f0df"),
    ("overflow", math.inf, "#f6d5d2"),
)


class GradientHistogram(extension.Extension):
    """Draws the distribution of the last step's gradients over the range of FP16.

    Above, a histogram of all gradients with and without loss scaling (Micikevicius et al. 2018, figure 3); below, the
    share of each layer's gradients that would become zero in FP16. Gradients that were FP16 in the backward pass have
    been rounded there already: gradients that became zero at the current loss scale are among the exact zeros.

    Drawing takes at most 5 % of the time: a picture that would soon be replaced is left out. The last picture is always
    drawn. Each call also writes the numbers as a line of JSON; for layers they are ``[exact zeros, becomes zero,
    subnormal, normal, overflow]``, with the loss scale applied.

    Args:
        optimizer: the :class:`~mixprec.MixedPrecisionOptimizer`.
        filename: name of the picture in the results folder. It is formatted with the trainer like the name of
            Chainer's snapshots: ``"gradients_{.updater.iteration}.png"`` keeps one picture of each call.
        numbers: name of the file for the numbers in the results folder; ``None`` for no file.

    Raises:
        TypeError: ``optimizer`` is not a :class:`~mixprec.MixedPrecisionOptimizer`, ``filename`` is not a string, or
            ``numbers`` is neither a string nor ``None``.

    Example:
        >>> import os, tempfile
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> from mixprec import training
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> report = mixprec.convert(model)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD()).setup(model)
        >>> data = chainer.datasets.TupleDataset(np.ones((16, 4), np.float32), np.zeros(16, np.int32))
        >>> updater = training.CapturedUpdater(chainer.iterators.SerialIterator(data, 8), optimizer, device=-1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer = chainer.training.Trainer(updater, (2, "epoch"), out=folder)
        ...     trainer.extend(training.GradientHistogram(optimizer), trigger=(1, "epoch"))
        ...     trainer.run()
        ...     sorted(os.listdir(folder))  # the picture needs matplotlib
        ['gradients.jsonl', 'gradients.png']
    """

    trigger = 1, "epoch"

    def __init__(self, optimizer, filename="gradients.png", numbers=FILE):
        self._optimizer = arguments.optimizer("optimizer", optimizer)
        self._filename = arguments.instance("filename", filename, str, "a string")
        self._pictures, self._path = Pictures(), None
        if numbers is not None:
            arguments.instance("numbers", numbers, str, "a string or None")
        self._log = None if numbers is None else GradientLog(numbers)

    def initialize(self, trainer):
        """In a resumed run, drops numbers of later iterations from the file."""
        if self._log is not None:
            self._log.go_on(trainer.out, trainer.updater.iteration)

    def __call__(self, trainer):
        summary = summarize(self._optimizer.unscaled_gradients(), self._optimizer.loss_scale)
        if not summary.layers:
            return
        if self._log is not None:
            self._log.add(trainer, summary)
        path = os.path.join(trainer.out, self._filename.format(trainer))
        if path != self._path:  # the previous picture is kept
            self._pictures.finish()
            self._pictures, self._path = Pictures(), path
        iteration = trainer.updater.iteration

        def write():
            with files.replacing(path) as temporary:
                draw(summary, f"Gradients of iteration {iteration}").savefig(temporary)

        self._pictures.draw(write)

    def finalize(self):
        self._pictures.finish()


def draw(summary, title):
    """Returns the picture of a :class:`~mixprec.training.gradient_counts.Summary` as a matplotlib figure."""
    from matplotlib.figure import Figure  # takes a second: most commands draw nothing

    heights = 3.6, 1.2 + 0.13 * len(summary.layers)
    figure = Figure(figsize=(9, sum(heights)), dpi=120, layout="constrained")
    above, below = figure.subplots(2, height_ratios=heights)
    title += f", loss scale now $2^{{{summary.shift}}}$"
    if summary.total.not_finite:
        title += f"\n{summary.total.not_finite} values are inf or NaN, counted as overflow: this step was skipped"
    figure.suptitle(title, fontsize=11)
    _draw_histogram(above, summary)
    _draw_layers(below, summary.layers)
    return figure


def _draw_histogram(axes, summary):
    total = summary.total
    shares = 100 * total.binades / total.values
    edges = np.arange(LOWEST, LOWEST + len(shares) + 1)
    used = np.flatnonzero(total.binades) + LOWEST
    left = min([-32, *used, *(used + summary.shift)])
    right = max([22, *(used + 1), *(used + summary.shift + 1)])
    _draw_regions(axes, total, left, right)
    style = {"baseline": _SMALLEST_SHARE, "linewidth": 1.5}
    axes.stairs(shares, edges + summary.shift, fill=True, color=_SCALED, alpha=0.8, label=_WITH_SCALE, **style)
    axes.stairs(shares, edges, color=_UNSCALED, label=_WITHOUT_SCALE, **style)
    if total.not_finite:
        share = 100 * total.not_finite / total.values
        axes.bar(right - 1.5, share, 1, color="none", edgecolor="black", hatch="////", label="inf and NaN")
    axes.plot([], [], " ", label=f"exact zeros, not drawn: {_percent(total.zeros, total.values)}")
    axes.set_yscale("log")
    axes.set(xlim=(left, right), ylim=(_SMALLEST_SHARE, 100), xlabel="log2 |gradient|", ylabel="% of all values")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.18), **_LEGEND)


def _draw_regions(axes, total, left, right):
    """Colors the regions and writes their percentages above them."""
    start = left
    for (name, end, color), scaled, unscaled in zip(_REGIONS, total.scaled, total.unscaled, strict=True):
        end = min(math.log2(end), right)
        axes.axvspan(start, end, color=color, linewidth=0)
        style = {"ha": "center", "fontsize": 8, "transform": axes.get_xaxis_transform()}
        middle = (start + end) / 2
        axes.text(middle, 1.13, name, **style)
        axes.text(middle, 1.07, _percent(scaled, total.values), color=_SCALED, **style)
        axes.text(middle, 1.01, _percent(unscaled, total.values), color=_UNSCALED, **style)
        start = end


def _draw_layers(axes, layers):
    rows = range(len(layers))

    def shares(count):
        return [100 * count(layer) / layer.values for layer in layers.values()]

    axes.barh(rows, shares(lambda layer: layer.unscaled.flushed), color=_UNSCALED, alpha=0.5, label=_WITHOUT_SCALE)
    axes.barh(rows, shares(lambda layer: layer.scaled.flushed), color=_SCALED, label=_WITH_SCALE)
    axes.plot(
        shares(lambda layer: layer.zeros), rows, "|", color="black", label="exact zeros: true ones, or lost already"
    )
    axes.set_yticks(rows, layers, fontsize=6.5)
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set(
        xlim=(0, 100),
        ylim=(len(layers) - 0.4, -0.6),
        xlabel="% of the layer's values that become zero in FP16, not counting exact zeros",
    )
    axes.grid(alpha=0.3, axis="x")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), **_LEGEND)


def _percent(count, of):
    share = 100 * count / of
    return f"{share:.3g} %" if share == 0 or share >= _SMALLEST_SHARE else f"< {_SMALLEST_SHARE} %"
