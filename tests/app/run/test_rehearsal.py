"""The rehearsal: it knows every shape of a run, leaves nothing to build or measure, and changes not a bit."""

import contextlib
import random
import shutil

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
import yaml

from mixprec.app import config as configs
from mixprec.app.commands import train as command
from mixprec.app.parts import images
from mixprec.app.run import rehearsal
from mixprec.app.run.rehearsal import Shape
from mixprec.backends.cudnn import context, plans
from mixprec.backends.cudnn import settings as cudnn
from mixprec.data.loaders.synthetic import SyntheticIterator
from mixprec.graph_capture import capture_evaluation
from mixprec.training.evaluation import Evaluator
from mixprec.training.plots import Plots
from mixprec.training.updater import CapturedUpdater, TimedUpdater
from tests.app.run import finished_run, small_images
from tests.cases import first, pairs
from tests.graph_capture.captured_runs import Run, assert_same, batch
from tests.stand_ins.capture_sides import gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides
from tests.stand_ins.graph_on_host import GraphCuda

# Shapes


def _config(tmp_path, *overrides):
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: {arch: a, classes: 3}\ndata: {size: 12, resize: 12}\noptimizer: {lr: 0.1}\n"
        "training: {batch_size: 4, epochs: 5}\n"
    )
    return configs.load(path, overrides)


SYNTHETIC = ("data.format=synthetic", "data.synthetic_images=22", "snapshot.best=false")
STAGES = ("progressive.until=[2, 3]", "progressive.sizes=[8, 10]", "progressive.batch_sizes=[7, 5]")


@pytest.mark.parametrize(
    ("last_batch", "ranks", "stages", "count"), pairs(["partial", "drop", "pad"], [1, 3], [(), STAGES], [22, 24, 25])
)
def test_the_shapes_of_training_are_those_of_its_batches(tmp_path, last_batch, ranks, stages, count):
    config = _config(tmp_path, f"data.last_batch={last_batch}", *SYNTHETIC, *stages)
    for rank in range(ranks):
        iterator = images.train_iterator(config, range(count), chainer.get_device("@numpy"), rank=rank, ranks=ranks)
        found = {}
        while iterator.epoch < 5:
            epoch, (x, _) = iterator.epoch_detail, iterator.next()
            found.setdefault(Shape(*x.shape[:2]), epoch)
        shapes = rehearsal.training_shapes(config, count, rank, ranks)
        assert sorted(shapes) == sorted(found)
        pixels = [shape.images * shape.size**2 for shape in shapes]
        assert pixels == sorted(pixels, reverse=True)
        late = rehearsal.training_shapes(config, count, rank, ranks, since=3.0)
        assert {shape.size for shape in late} == {12}


@pytest.mark.slow
@pytest.mark.parametrize(("one_shape", "ranks"), [(True, 1), (False, 3)])
def test_the_shapes_of_an_evaluation_are_those_of_its_batches(tmp_path, one_shape, ranks):
    small_images.make(tmp_path / "images")  # 7 for validation
    keys = ("data.loader=pillow", "data.threads=1", "data.val_size=8")
    places = [f"data.{key}={tmp_path / 'images' / key}" for key in ("train", "val")]
    config = _config(tmp_path, *keys, *places)
    _, val = images.open_sources(config)
    for rank in range(ranks):
        shard = {"rank": rank, "ranks": ranks}
        iterator = images.val_iterator(config, val, chainer.get_device("@numpy"), one_shape=one_shape, **shard)
        found = {Shape(*x.shape[:2]) for x, _ in iterator}
        iterator.finalize()
        assert set(rehearsal.evaluation_shapes(config, 7, one_shape, rank, ranks)) == found


@pytest.mark.parametrize(("pad_channels", "compute"), [(True, "float16"), (False, "float32")])
def test_a_batch_of_random_numbers_is_laid_out_as_those_of_the_run(tmp_path, pad_channels, compute):
    keys = f"data.pad_channels={str(pad_channels).lower()}", f"precision.compute={compute}"
    config = _config(tmp_path, *SYNTHETIC, *keys)
    device, converter = chainer.get_device("@numpy"), images.converter_of(config)
    own = converter(images.random_batch(config, 12, 4, device), device)
    iterator = images.train_iterator(config, range(8), device)
    assert isinstance(iterator, SyntheticIterator)
    for mine, theirs in zip(own, converter(iterator.next(), device), strict=True):
        assert (mine.shape, mine.dtype, mine.strides) == (theirs.shape, theirs.dtype, theirs.strides)
    assert np.std(own[0][:, :3].astype(np.float32)) > 0.9  # engines are compared on them


# Nothing changes: the command on NumPy, where it is asked for by the test


class Noisy(chainer.Chain):
    """Has all that a forward pass may leave behind: statistics, dropout, random numbers, attributes, a list."""

    def __init__(self, classes):
        super().__init__()
        self.seen, self.calls = [], 0
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.norm = L.BatchNormalization(8)
            self.block = chainer.Sequential(L.Convolution2D(8, 8, 3, pad=1), L.BatchNormalization(8), F.relu)
            self.linear = L.Linear(8, classes)

    def forward(self, x):
        self.calls += 1
        self.seen.append(x.shape)
        assert len(self.seen) == self.calls
        h = self.block(F.relu(self.norm(self.conv(x))))
        h = F.dropout(F.average_pooling_2d(h, h.shape[2:]), 0.3)
        factor = 1.0 + 0.1 * np.random.rand() + 0.1 * random.random()
        return factor * self.linear(h)


EVERYTHING = {
    "model": {"arch": "noisy", "classes": 3},
    "loss_scale": {"growth_interval": 3, "init_scale": 2.0**20},  # overflows at first
    "data": {"train": "images/train", "val": "images/val", "size": 12, "resize": 12, "loader": "pillow", "threads": 1},
    "progressive": {"until": [1], "sizes": [8], "batch_sizes": [8]},
    "optimizer": {"name": "CorrectedMomentumSGD", "lr": 0.02, "weight_decay": 0.001},
    "training": {"batch_size": 4, "accumulation_steps": 2, "epochs": 3, "device": "cpu", "ema_decay": 0.9},
    "snapshot": {"every": "2 iterations", "keep": 99},
    "log": {"every": "1 iteration"},
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs the command with a config; returns the files that it has left, without times."""
    small_images.make(tmp_path / "images")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(EVERYTHING))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plots, "__call__", lambda self, trainer: None)  # which takes most of the time

    def train(out, *settings, rehearse, arguments=()):
        monkeypatch.setattr(rehearsal, "_has_engines", lambda device: rehearse)
        random.seed(0)
        sets = [word for setting in settings for word in ("--set", setting)]
        assert command.main(["--config", "c.yaml", "--out", out, *sets, *arguments], {"noisy": Noisy}) == 0
        return _left(tmp_path / out)

    return train


def _left(folder):
    files = {path.name: finished_run.members(path) for path in sorted(folder.glob("*.npz"))}
    return files, finished_run.log(folder)


WAYS = {
    "all": [],
    "offload": ["memory.budget=8 GB"],
    "mixing": ["training.mixup=0.2", "training.loss=bce", "data.last_batch=drop"],
    "kfac": ["optimizer.preconditioner=kfac", "optimizer.lr=0.001", "training.ema_decay=null"],
    "capture": ["capture=true"],
}


@pytest.mark.parametrize("way", first(0, WAYS, 2))
def test_a_run_with_a_rehearsal_is_that_without_bit_for_bit(train, way, capsys):
    expected = train("without", *WAYS[way], rehearse=False)
    assert "rehearsal" not in capsys.readouterr().out
    files, log = train("with", *WAYS[way], rehearse=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if "rehearsal" in line]
    assert len(lines) == 1
    steps = "4 x 12x12, 8 x 8x8" if way == "mixing" else "4 x 12x12, 8 x 8x8, 6 x 8x8, 2 x 12x12"
    evaluations = "4 x 12x12" if way == "capture" else "4 x 12x12, 3 x 12x12"
    words = f"rehearsal: engines are chosen for batches of training {steps}; evaluation {evaluations}, "
    assert lines[0].startswith(words)
    assert log == expected[1]
    assert files == expected[0]
    assert len(files) > 4


@pytest.mark.slow
def test_a_run_that_goes_on_rehearses_what_is_left(train, tmp_path, capsys):
    train("begun", "training.epochs=2", rehearse=False)
    shutil.copytree(tmp_path / "begun", tmp_path / "again")
    expected = train("begun", rehearse=False, arguments=["--resume", "auto"])
    capsys.readouterr()
    assert train("again", rehearse=True, arguments=["--resume", "auto"]) == expected
    assert "training 4 x 12x12, 2 x 12x12; evaluation" in capsys.readouterr().out


# Engines, on a stand-in device with graphs


@pytest.fixture
def device():
    """The primitives of the stand-in, which have no plan yet."""
    return GraphCuda()


class Batches(chainer.dataset.Iterator):
    """Ten batches of 4 images and one of 3, of 16 pixels; then the same of 24 pixels."""

    epoch, epoch_detail, is_new_epoch, delivered = 0, 0.0, False, 0

    def __init__(self, send):
        self._send = send

    @property
    def stage(self):
        return int(self.delivered > 11)

    def __next__(self):
        number = self.delivered
        self.delivered += 1
        return _batch(self._send, number, 3 if number % 11 == 10 else 4, 16 if number < 11 else 24)


def _batch(send, number, count, size):
    x, t = batch(number, count)
    more = (size - x.shape[2]) // 2
    x = np.pad(x, ((0, 0), (0, 0), (more, more), (more, more)), mode="reflect")
    return tuple(map(send, (x, t)))


@chainer.dataset.converter()
def _given(arrays, _):
    return arrays


class Counter:
    """Counts plans that are built, and operations whose engines are measured."""

    def __init__(self, monkeypatch):
        self.built = self.measured = 0
        for owner, name in ((context.CudnnContext, "_build"), (context.CudnnContext, "_measured"), (plans, "search")):
            monkeypatch.setattr(owner, name, self._counting(getattr(owner, name), "built" if name == "_build" else ""))

    def _counting(self, function, kind):
        def counted(*arguments):
            self.built += kind == "built"
            self.measured += kind != "built"
            return function(*arguments)

        return counted


@pytest.mark.slow
@both_sides
@pytest.mark.parametrize("kind", [CapturedUpdater, TimedUpdater])
def test_after_the_rehearsal_no_plan_is_built_and_no_engine_measured(side, monkeypatch, kind):  # noqa: F811
    """In two stages, with a last smaller batch, in steps, captures and evaluations; and the run is the same."""
    cudnn.configure(autotune="measure", cache=None)
    run, counter = Run(side=side, dropout=0.2), Counter(monkeypatch)
    updater = kind(Batches(side.send), run.optimizer, converter=_given)
    own = None if kind is TimedUpdater else capture_evaluation(run.model)
    test = [_batch(side.send, number, count, 32) for number, count in enumerate((4, 4, 3))]
    evaluator = Evaluator(chainer.iterators.SerialIterator(test, 1, False, False), run.model, _first, eval_func=own)

    with side.eagerly() if kind is TimedUpdater else contextlib.nullcontext():  # a captured one has a stream of its own
        for count, size in ((4, 24), (3, 24), (4, 16), (3, 16)):
            rehearsal.pass_of_training(updater, _batch(side.send, 100, count, size))
        for count in (4, 3):
            rehearsal.pass_of_evaluation(evaluator, run.optimizer, _batch(side.send, 100, count, 32))
    assert counter.built > 0 < counter.measured
    assert not run.optimizer._statistics.are_saved
    assert all(param.grad is None for param in run.model.params())
    before = counter.built, counter.measured
    _all(updater, evaluator, side)
    assert (counter.built, counter.measured) == before

    expected = Run(side=side, dropout=0.2)
    updater = TimedUpdater(Batches(side.send), expected.optimizer, converter=_given)
    test = Evaluator(chainer.iterators.SerialIterator(test, 1, False, False), expected.model, _first)
    _all(updater, test, side)
    assert_same(run, expected)


@chainer.dataset.converter()
def _first(batches, _):
    return batches[0]


def _all(updater, evaluator, side):  # noqa: F811
    for number in range(22):
        with side.eagerly():
            updater.update()
        if number % 11 == 10:
            with side.eagerly():
                evaluator()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CapturedUpdater, TimedUpdater])
def test_the_rehearsal_needs_no_more_memory_than_a_step(host, kind):  # noqa: F811
    cudnn.configure(autotune="heuristic", cache=None)
    run = Run(side=host)
    updater = kind(Batches(host.send), run.optimizer, converter=_given)
    batches = [_batch(host.send, 100, count, size) for count, size in ((4, 24), (3, 24), (4, 16), (3, 16))]
    with host.peak() as rehearsed, host.eagerly():
        for arrays in batches:
            rehearsal.pass_of_training(updater, arrays)
    del batches, arrays
    with host.peak() as trained, host.eagerly():
        for _ in range(13):
            updater.update()
    assert 0 < rehearsed.bytes <= trained.bytes
