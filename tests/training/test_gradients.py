"""What a run shows of its gradients: counts by the regions of FP16, the picture of them, the norm in the log."""

import itertools
import json
import math
import os
import subprocess
import sys

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, training
from chainer.training import extensions
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import mixprec
from mixprec.app import config as configs
from mixprec.app.parts import model as models
from mixprec.app.parts import trainer as trainers
from mixprec.training import GradientHistogram, LossScaleLog
from mixprec.training.gradient_counts import LOWEST, Regions, summarize
from mixprec.training.gradient_histogram import draw
from mixprec.training.plots import Plots
from tests.app.run import finished_run
from tests.cases import first


def _array(*values):
    return np.array(values, np.float32)


def _binades(counts):
    """Exponents with their counts, where there are any."""
    return {LOWEST + index: count for index, count in enumerate(counts.binades.tolist()) if count}


# Counting


REGIONS = [
    (2.0**-100, "flushed"),
    (2.0**-25, "flushed"),  # half way between 0 and 2^-24: to the even one
    (np.nextafter(np.float32(2.0**-25), np.float32(1)), "subnormal"),
    (2.0**-24, "subnormal"),
    (np.nextafter(np.float32(2.0**-14), np.float32(0)), "subnormal"),
    (2.0**-14, "normal"),
    (65519, "normal"),
    (65520, "overflow"),  # half way between 65504 and 2^16
    (math.inf, "overflow"),
    (math.nan, "overflow"),
]


@pytest.mark.parametrize(("value", "region"), REGIONS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scale", [1.0, 2.0**16, 2.0**-3])
def test_the_ends_of_the_regions(value, region, sign, scale):
    expected = Regions(0, 0, 0, 0)._replace(**{region: 1})
    total = summarize([("/W", _array(sign * value) / np.float32(scale))], scale).total
    assert total.scaled == expected
    assert (total.values, total.zeros, total.not_finite) == (1, 0, int(not math.isfinite(value)))


@given(st.lists(st.floats(width=32), max_size=20), st.integers(-30, 30))
def test_the_regions_are_those_of_numpys_rounding(values, exponent):
    scale = 2.0**exponent
    total = summarize([("/W", _array(*values))], scale).total
    with np.errstate(over="ignore", invalid="ignore"):
        half = (_array(*values).astype(np.float64) * scale).astype(np.float16)
    nonzero = _array(*values) != 0
    assert total.scaled.flushed == np.sum(nonzero & (half == 0))
    assert total.scaled.overflow == np.sum(~np.isfinite(half))
    assert total.zeros == np.sum(~nonzero)
    assert total.values == len(values)
    assert total.binades.sum() + total.zeros + total.not_finite == len(values)


def test_the_parameters_of_a_link_are_counted_together_in_their_order():
    pairs = [("/b/conv/W", _array(1, 0)), ("/b/conv/b", _array(2**-30)), ("/a/W", _array(1)), ("/W", _array(4, 4))]
    summary = summarize(iter(pairs), 1.0)
    assert {path: counts.values for path, counts in summary.layers.items()} == {"/b/conv": 3, "/a": 1, "/": 2}
    assert list(summary.layers) == ["/b/conv", "/a", "/"]
    assert summary.layers["/b/conv"].scaled == Regions(flushed=1, subnormal=0, normal=1, overflow=0)
    assert summary.total.values == 6
    assert summary.total.scaled == Regions(flushed=1, subnormal=0, normal=4, overflow=0)


# Drawing


def _texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_picture_states_the_counts():
    values = [0, 0, 2**-26, 2**-20, 1, 1, 1, 1]
    figure = draw(summarize([("/l/W", _array(*values)), ("/m/W", _array(1, 1))], 2.0**8), "Title")
    above, below = figure.axes
    assert figure.get_suptitle() == "Title, loss scale now $2^{8}$"
    assert _texts(above)[::3] == ["becomes zero", "subnormal", "normal", "overflow"]
    assert _texts(above)[1::3] == ["0 %", "10 %", "70 %", "0 %"]
    assert _texts(above)[2::3] == ["10 %", "10 %", "60 %", "0 %"]
    assert "exact zeros, not drawn: 20 %" in [text.get_text() for text in above.get_legend().get_texts()]
    assert [label.get_text() for label in below.get_yticklabels()] == ["/l", "/m"]
    without, scaled = ([bar.get_width() for bar in bars] for bars in below.containers)
    assert (without, scaled) == ([12.5, 0], [0, 0])
    assert list(below.lines[0].get_xdata()) == [25, 0]


def test_the_histogram_is_shifted_by_the_scale():
    above = draw(summarize([("/W", _array(1, 1, 3, 2**-20))], 2.0**8), "").axes[0]
    for steps, shift in zip(above.patches[-2:], (8, 0), strict=True):
        shares, edges, _ = steps.get_data()
        drawn = {int(edge): share for edge, share in zip(edges[:-1], shares, strict=True) if share}
        assert drawn == {-20 + shift: 25, shift: 50, 1 + shift: 25}


def test_inf_and_nan_are_in_the_title_and_in_the_overflow_region():
    figure = draw(summarize([("/W", _array(1, 1, math.inf, math.nan))], 2.0), "Title")
    assert (
        figure.get_suptitle().splitlines()[1] == "2 values are inf or NaN, counted as overflow: this step was skipped"
    )
    assert _texts(figure.axes[0])[10:] == ["50 %", "50 %"]


@pytest.mark.parametrize("layers", first(1, [3, 110]))
def test_the_names_of_the_layers_do_not_overlap(layers):
    names = [f"/predictor/layer1/{index}/downsample/0/W" for index in range(layers)]
    figure = draw(summarize([(name, _array(1)) for name in names], 1.0), "Title")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [label.get_window_extent(canvas.get_renderer()) for label in figure.axes[1].get_yticklabels()]
    assert len(boxes) == layers
    assert all(lower.y1 <= upper.y0 for upper, lower in itertools.pairwise(boxes))
    assert all(box.x0 >= 0 for box in boxes)


# The extensions, with a small optimizer that says what is asked of it


class Optimizer:
    """What the extensions ask of MixedPrecisionOptimizer."""

    skipped = 3

    def __init__(self, *gradients):
        self.gradients = [(f"/l{index}/W", gradient) for index, gradient in enumerate(gradients)]
        self.reads = 0

    @property
    def loss_scale(self):
        self.reads += 1
        return 1024.0

    def unscaled_gradients(self):
        yield from self.gradients


class Updater:
    """Six iterations, two of them an epoch, in which nothing happens."""

    iteration = 0

    @property
    def epoch(self):
        return self.iteration // 2

    @property
    def epoch_detail(self):
        return self.iteration / 2

    @property
    def is_new_epoch(self):
        return self.iteration % 2 == 0

    def connect_trainer(self, trainer):
        pass

    def get_all_optimizers(self):
        return {}

    def update(self):
        self.iteration += 1

    def finalize(self):
        pass


def _run(out, *added):
    trainer = training.Trainer(Updater(), (3, "epoch"), out=str(out))
    trainer.extend(extensions.LogReport())  # before what it shall see: the priority must put it behind
    for extension in added:
        trainer.extend(extension)
    trainer.run()
    return json.loads((out / "log").read_text())


def test_the_log_has_scale_skipped_steps_and_norm_of_its_own_iteration(tmp_path):
    optimizer = Optimizer(_array([1, 2], [-2, 4]), _array(12))
    log = _run(tmp_path, LossScaleLog(optimizer))
    assert [entry["iteration"] for entry in log] == [2, 4, 6]
    assert {(entry["loss_scale"], entry["skipped"], entry["gradient_norm"]) for entry in log} == {(1024, 3, 13)}
    assert optimizer.reads == 3


def test_the_norm_does_not_overflow_with_the_squares(tmp_path):
    log = _run(tmp_path, LossScaleLog(Optimizer(_array(3 * 2.0**120), _array(4 * 2.0**120))))
    assert log[0]["gradient_norm"] == 5 * 2.0**120


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_left_out(tmp_path, value):
    log = _run(tmp_path, LossScaleLog(Optimizer(_array(1), _array(value, 1))))
    assert log[0]["loss_scale"] == 1024
    assert all("gradient_norm" not in entry for entry in log)


@pytest.mark.slow
def test_pictures_of_a_series_are_kept(tmp_path):
    optimizer = Optimizer(_array(1, 2**-30))
    _run(tmp_path, GradientHistogram(optimizer, "gradients_{.updater.iteration}.png"))
    names = {"gradients_2.png", "gradients_4.png", "gradients_6.png"}
    assert set(os.listdir(tmp_path)) == {"log", "gradients.jsonl", *names}
    for name in names:
        assert (tmp_path / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_by_default_there_is_one_picture(tmp_path):
    _run(tmp_path, GradientHistogram(Optimizer(_array(1))))
    assert set(os.listdir(tmp_path)) == {"log", "gradients.jsonl", "gradients.png"}


@pytest.mark.slow
def test_importing_the_extensions_imports_neither_dali_nor_yaml():
    code = (
        "import sys; from mixprec.training import GradientHistogram, LossScaleLog; "
        "print(sorted({'nvidia', 'nvidia.dali', 'yaml'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# The real optimizer


class Trainer:
    """What the extensions ask of a trainer."""

    class updater:
        iteration, epoch_detail = 1, 0.5

    def __init__(self, out):
        self.out = str(out)
        self.observation = {}


def _step(x):
    """One step with the loss W x: its gradient is x."""
    model = L.Linear(2, 1, nobias=True)
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(0.5), loss_scale=2.0**10).setup(model)
    optimizer.update(lambda x: F.sum(model(x)), np.array([x], np.float16))
    return optimizer


def test_norm_and_counts_of_the_real_optimizer(tmp_path):
    trainer = Trainer(tmp_path)
    optimizer = _step([3 * 2.0**-24, 4 * 2.0**-24])
    LossScaleLog(optimizer)(trainer)
    assert trainer.observation == {"loss_scale": 1024, "skipped": 0, "gradient_norm": 5 * 2.0**-24}
    summary = summarize(optimizer.unscaled_gradients(), optimizer.loss_scale)
    assert list(summary.layers) == ["/"]
    assert summary.total.unscaled == Regions(flushed=0, subnormal=2, normal=0, overflow=0)
    assert summary.total.scaled == Regions(flushed=0, subnormal=0, normal=2, overflow=0)
    GradientHistogram(optimizer)(trainer)
    assert set(os.listdir(tmp_path)) == {"gradients.jsonl", "gradients.png"}


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, "4 iterations"])
def test_a_run_asks_for_gradients_only_for_the_log_and_the_picture(tmp_path, monkeypatch, capsys, every):
    (tmp_path / "c.yaml").write_text(
        "model: {arch: linear, classes: 2}\ndata: {format: synthetic, synthetic_images: 6, size: 8}\n"
        "optimizer: {lr: 0.1}\ntraining: {batch_size: 2, epochs: 2}\nsnapshot: {best: false}\n"
        "loss_scale: {init_scale: 1024}\n"
    )
    config = configs.load(tmp_path / "c.yaml", [] if every is None else [f"log.gradient_histogram={every}"])
    asked = []
    gradients = mixprec.MixedPrecisionOptimizer.unscaled_gradients

    def watched(optimizer):
        asked.append(optimizer.t)
        return gradients(optimizer)

    monkeypatch.setattr(mixprec.MixedPrecisionOptimizer, "unscaled_gradients", watched)
    monkeypatch.setattr(Plots, "_draw", lambda self, *_: Figure())  # an empty one, which is quicker
    _, optimizer, _ = models.build_model(config, lambda classes: L.Linear(192, classes), "@numpy")
    out = tmp_path / "out"
    trainers.build_trainer(config, optimizer, range(6), None, str(out)).run()
    log = finished_run.log(out)
    assert [entry["iteration"] for entry in log] == [3, 6]
    assert all(entry["gradient_norm"] > 0 and entry["loss_scale"] == 2.0**10 for entry in log)
    # At the end of each epoch for the log, after step 4 for the picture.
    assert asked == ([3, 6] if every is None else [3, 4, 6])
    assert (out / "gradients.png").exists() == (out / "gradients.jsonl").exists() == (every is not None)
    assert (out / "gradient_norm.png").exists()
