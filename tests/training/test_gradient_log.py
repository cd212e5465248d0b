"""gradients.jsonl: the numbers behind the picture of the gradients, a line a call, also of a run that is resumed."""

import json
import math

import chainer
import numpy as np
import pytest
from chainer import training

import mixprec
from mixprec.base import files
from mixprec.training import GradientHistogram
from mixprec.training.gradient_counts import summarize
from mixprec.training.gradient_log import GradientLog
from mixprec.training.pictures import Pictures


class Updater:
    """An updater in which nothing happens; 4 iterations are an epoch."""

    def __init__(self, iteration=0):
        self.iteration = iteration

    @property
    def epoch_detail(self):
        return self.iteration / 4


class Trainer:
    """What the extension asks of a trainer."""

    def __init__(self, out, iteration=0):
        self.out, self.updater = str(out), Updater(iteration)


class Optimizer:
    """What the extension asks of MixedPrecisionOptimizer."""

    loss_scale, skipped = 1024.0, 0

    def __init__(self, *gradients):
        self._gradients = gradients

    def unscaled_gradients(self):
        yield from self._gradients


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(Pictures, "draw", lambda self, write: None)


def _array(*values):
    return np.array(values, np.float32)


GRADIENTS = (
    ("/conv/W", _array(0, 2**-40, -(2**-36), 2**-30, 0.75, 1, 3)),
    ("/conv/b", _array(0, 0)),
    ("/fc/W", _array(1e6, math.inf, math.nan)),
)


def _call(out, *iterations, start=0, gradients=GRADIENTS, **options):
    """Calls the extension at these iterations of a process that begins or goes on after ``start``."""
    extension, trainer = GradientHistogram(Optimizer(*gradients), **options), Trainer(out, start)
    extension.initialize(trainer)
    for iteration in iterations:
        trainer.updater.iteration = iteration
        extension(trainer)


def _lines(out):
    return [json.loads(line) for line in (out / "gradients.jsonl").read_text().splitlines()]


def _iterations(out):
    return [line["iteration"] for line in _lines(out)]


def test_a_line_has_the_counts_of_the_picture(tmp_path):
    _call(tmp_path, 2)
    (line,) = _lines(tmp_path)
    binades = line.pop("binades")
    assert line == {
        "iteration": 2,
        "epoch": 0.5,
        "loss_scale": 1024.0,
        "zeros": 3,
        "not_finite": 2,
        "lowest": -40,
        # Of the layers: zeros, flushed, subnormal, normal, overflow; times 2^10 the small ones are 2^-30, -26 and -20.
        "layers": {"/conv": [3, 2, 1, 3, 0], "/fc": [0, 0, 0, 0, 3]},
    }
    found = {line["lowest"] + place: count for place, count in enumerate(binades) if count}
    assert found == {-40: 1, -36: 1, -30: 1, -1: 1, 0: 1, 1: 1, 19: 1}
    assert len(binades) == 60, "none beyond the last one that holds something"


@pytest.mark.parametrize("values", [(0, 0), (math.nan, math.inf)])
def test_without_a_number_in_any_binade_the_list_is_empty(tmp_path, values):
    _call(tmp_path, 1, gradients=[("/W", _array(*values))])
    (line,) = _lines(tmp_path)
    assert (line["lowest"], line["binades"]) == (0, [])


def test_each_call_adds_a_line_and_no_iteration_has_two(tmp_path):
    _call(tmp_path, 2, 2, 4, 6, 6)
    assert _iterations(tmp_path) == [2, 4, 6]
    assert [line["epoch"] for line in _lines(tmp_path)] == [0.5, 1.0, 1.5]


def test_a_line_is_appended_and_half_a_line_is_dropped(tmp_path):
    _call(tmp_path, 1, 2)
    path = tmp_path / "gradients.jsonl"
    before = path.read_bytes()
    with path.open("ab") as file:
        file.write(before[: len(before) // 3])  # a process was killed while it wrote
    log = GradientLog()
    log.go_on(str(tmp_path), 2)
    assert path.read_bytes() == before


def test_without_gradients_or_a_name_there_is_no_file(tmp_path):
    _call(tmp_path, 1, 2, gradients=())
    _call(tmp_path, 1, 2, numbers=None)
    assert list(tmp_path.iterdir()) == []
    _call(tmp_path, 1, numbers="counts.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["counts.jsonl"]


# A run that goes on


@pytest.mark.parametrize(("start", "kept"), [(0, []), (3, [2]), (4, [2, 4]), (5, [2, 4]), (6, [2, 4, 6])])
def test_a_resumed_run_drops_the_lines_after_its_snapshot_at_once(tmp_path, start, kept):
    _call(tmp_path, 2, 4, 6)
    whole = (tmp_path / "gradients.jsonl").read_bytes()
    _call(tmp_path, start=start)
    assert _iterations(tmp_path) == kept
    _call(tmp_path, *(iteration for iteration in (2, 4, 6) if iteration >= start), start=start)
    assert (tmp_path / "gradients.jsonl").read_bytes() == whole


def test_a_file_that_is_right_is_not_written(tmp_path, monkeypatch):
    _call(tmp_path, 2, 4)
    monkeypatch.setattr(files, "write_text", None)
    _call(tmp_path, start=4)


GOOD = b'{"iteration": 2}\n{"iteration": 4}\n'


DAMAGED = [
    b'{"iteration": 5',
    b"\xff\xfe\n",
    b"null\n",
    b'{"iteration": "5"}\n',
    b'{"iteration": true}\n',
    b'{"iteration": 3}\n',  # backwards
    b"[" * 100_000 + b"\n",
]


@pytest.mark.parametrize("damaged", DAMAGED, ids=range(7))
def test_a_damaged_line_and_what_follows_is_dropped(tmp_path, damaged):
    path = tmp_path / "gradients.jsonl"
    path.write_bytes(GOOD + damaged + b'{"iteration": 6}\n')
    log = GradientLog()
    log.go_on(str(tmp_path), 8)
    assert path.read_bytes() == GOOD
    log.add(Trainer(tmp_path, 9), summarize(GRADIENTS, 1.0))
    assert _iterations(tmp_path) == [2, 4, 9]


def test_what_is_no_file_is_an_error_only_when_it_is_written(tmp_path):
    (tmp_path / "gradients.jsonl").mkdir()
    _call(tmp_path, start=3)
    with pytest.raises(IsADirectoryError):
        _call(tmp_path, 4)


def test_in_a_trainer_with_the_real_optimizer(tmp_path):
    """Chainer's own Trainer, with a snapshot in the middle, from which another one goes on."""

    def run(iterations, snapshot=None):
        model = chainer.links.Classifier(chainer.links.Linear(4, 3, initialW=0.1))
        mixprec.convert(model)
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(0.1)).setup(model)
        data = chainer.datasets.TupleDataset(np.eye(8, 4, dtype=np.float32), np.arange(8, dtype=np.int32) % 3)
        updater = training.StandardUpdater(chainer.iterators.SerialIterator(data, 4, shuffle=False), optimizer)
        trainer = training.Trainer(updater, (iterations, "iteration"), out=str(tmp_path))
        trainer.extend(GradientHistogram(optimizer), trigger=(1, "iteration"))
        if snapshot is not None:
            chainer.serializers.load_npz(snapshot, trainer)
        trainer.run()
        return trainer

    chainer.serializers.save_npz(tmp_path / "3.npz", run(3))
    run(5)
    whole = (tmp_path / "gradients.jsonl").read_bytes()
    assert _iterations(tmp_path) == [1, 2, 3, 4, 5]
    assert [line["epoch"] for line in _lines(tmp_path)] == [0.5, 1, 1.5, 2, 2.5]
    run(5, tmp_path / "3.npz")
    assert (tmp_path / "gradients.jsonl").read_bytes() == whole
