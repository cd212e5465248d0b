"""The parts of a training run: schedule, evaluation, console, plots, snapshots, results folder, atomic files."""

import os

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers, training
from chainer.training import extensions

import mixprec
from mixprec import config, files
from mixprec.config.schema import Optimizer
from mixprec.training import console, output, snapshots
from mixprec.training.evaluation import Evaluator
from mixprec.training.plots import Plots
from mixprec.training.schedule import Schedule
from mixprec.training.trainer import attribute, build_optimizer


def _schedule(kind="cosine", warmup_epochs=5.0, optimizer=None):
    return Schedule(optimizer, "lr", peak=0.8, kind=kind, epochs=90, warmup_epochs=warmup_epochs, iteration_epochs=0.01)


def test_warm_up_rises_linearly_and_the_cosine_ends_at_zero():
    rate = _schedule().rate
    assert rate(0) == pytest.approx(0.8 * 0.01 / 5)
    assert rate(2.49) == pytest.approx(0.4)
    assert rate(5) == pytest.approx(0.8)
    assert rate(47.5) == pytest.approx(0.4)  # half way between 5 and 90
    assert rate(90) == pytest.approx(0, abs=1e-12)


def test_constant_schedule_without_warm_up():
    rate = _schedule("constant", 0.0).rate
    assert {rate(epoch) for epoch in (0, 0.5, 89)} == {0.8}


NAMES = Optimizer.__dataclass_fields__["name"].metadata["choices"]


def _optimizer(tmp_path, **settings):
    """What a config with these keys makes, set up on a model with a weight and a bias, all ones; after one step."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: {arch: a, classes: 2}\ndata: {train: t, val: v}\ntraining: {batch_size: 1, epochs: 1}\n"
        "loss_scale: {mode: none}\n"
    )
    model = L.Linear(4, 4, initialW=1, initial_bias=1)
    mixprec.convert(model)
    optimizer = build_optimizer(config.load(path, [f"{key}={value}" for key, value in settings.items()]), model)
    for param in model.params():
        param.grad = np.full_like(param.array, 0.5)
    optimizer.update()
    return optimizer


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batched", ["true", "false"])
def test_every_optimizer_of_the_schema_takes_a_step(tmp_path, name, batched):
    optimizer = _optimizer(
        tmp_path,
        **{"optimizer.name": name, "optimizer.lr": 0.25, "optimizer.weight_decay": 0.5, "update.batched": batched},
    )
    assert getattr(optimizer, attribute(name)) == 0.25
    for param in optimizer.target.params():
        assert np.isfinite(param.array).all()
        assert (param.array < 1).all()


@pytest.mark.parametrize(("everywhere", "bias"), [("false", 1 - 0.25 * 0.5), ("true", 1 - 0.25 * (0.5 + 0.5))])
def test_weight_decay_spares_the_bias_if_the_config_says_so(tmp_path, everywhere, bias):
    settings = {"optimizer.name": "SGD", "optimizer.lr": 0.25, "optimizer.weight_decay": 0.5}
    model = _optimizer(tmp_path, **settings, **{"optimizer.decay_norm_and_bias": everywhere}).target
    np.testing.assert_array_equal(model.W.array, 1 - 0.25 * (0.5 + 0.5))
    np.testing.assert_array_equal(model.b.array, bias)


@pytest.mark.parametrize(("everywhere", "bias"), [("false", 1 - 0.25 * 0.5), ("true", 1 - 0.25 * 0.125)])
def test_lars_of_a_config(tmp_path, everywhere, bias):
    """The weight: its norm is 4 and that of the gradient 2, so that the trust ratio is 0.125 * 4 / (2 + 0.5 * 4).

    The bias: the same with norms of 2 and 1; or no trust ratio and no weight decay.
    """
    settings = {"name": "LARS", "lr": 0.25, "momentum": 0, "trust_coefficient": 0.125, "weight_decay": 0.5}
    settings = {f"optimizer.{name}": value for name, value in settings.items()}
    optimizer = _optimizer(tmp_path, **settings, **{"optimizer.decay_norm_and_bias": everywhere})
    assert (optimizer.momentum, optimizer.trust_coefficient, optimizer.weight_decay) == (0, 0.125, 0.5)
    np.testing.assert_allclose(optimizer.master(optimizer.target.W).array, 1 - 0.25 * 0.125, rtol=1e-6)
    np.testing.assert_allclose(optimizer.master(optimizer.target.b).array, bias, rtol=1e-6)


def test_evaluation_counts_every_image_the_same():
    """Three images, two of them in the first batch: the mean of batches would be 0.75."""

    class Reporting(chainer.Link):
        def forward(self, x):
            chainer.report({"accuracy": float(x.mean())}, self)

    class Batches(chainer.dataset.Iterator):
        def __next__(self):
            if not self.left:
                raise StopIteration
            return self.left.pop()

        def reset(self):
            self.left = [(np.zeros(1),), (np.ones(2),)]

    evaluator = Evaluator(Batches(), Reporting(), converter=lambda batch, device: batch)
    evaluator.name = "validation"
    for _ in range(2):
        assert evaluator()["validation/main/accuracy"] == pytest.approx(2 / 3, rel=1e-6)


def test_console_lines_come_whole_and_without_cursor_controls(capsys):
    lines = console.Lines()
    for part in ("\033[J", "epoch  ", "1\n", "\033[J2"):
        lines.write(part)
    lines.flush()
    assert capsys.readouterr().out == "epoch  1\n"


def test_the_bar_shows_the_loss_scale_that_was_last_logged(monkeypatch):
    class Bar:
        def __init__(self, total, initial, **_):
            self.total, self.n = total, initial
            self.disable = False
            self.postfixes = []

        def update(self, images):
            self.n += images

        def set_description(self, text, refresh):
            self.text = text

        def set_postfix(self, refresh, **values):
            self.postfixes.append(values)

    class Trainer:
        class updater:
            epoch, epoch_detail = 1, 1.25

        observation = {}  # noqa: RUF012

    monkeypatch.setattr(console, "tqdm", Bar)
    progress = console.ProgressBar(images=8, epochs=3)
    progress.initialize(Trainer)
    bar = progress._bar
    assert (bar.total, bar.n) == (24, 10)
    Trainer.updater.epoch_detail = 1.5
    for observation in ({}, {"loss_scale": 65536.0}, {}):
        Trainer.observation = observation
        progress(Trainer)
    assert (bar.n, bar.text) == (12, "epoch 2/3")
    assert bar.postfixes == [{"loss_scale": "65536"}]


def test_plots_are_drawn_from_the_log(tmp_path):
    class Trainer:
        out = str(tmp_path)

    log = extensions.LogReport()
    # A skipped step has no norm.
    log._log = [{"iteration": i, "main/loss": 1 / i, "loss_scale": 2.0**i} for i in (1, 2)]
    log._log[0]["gradient_norm"] = 0.5
    Plots(log, 0.5)(Trainer)
    names = {"loss.png", "accuracy.png", "loss_scale.png", "gradient_norm.png", "learning_rate.png"}
    assert set(os.listdir(tmp_path)) == names
    for name in names:
        assert (tmp_path / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_replacing_leaves_the_old_file_when_writing_fails(tmp_path):
    path = tmp_path / "file.txt"
    files.write_text(path, "old")

    def write_half():
        with files.replacing(path) as temporary:
            with open(temporary, "w") as file:
                file.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def _trainer(out, width=3):
    model = L.Classifier(L.Linear(4, width))
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam()).setup(model)
    data = chainer.datasets.TupleDataset(np.ones((8, 4), np.float32), np.arange(8, dtype=np.int32) % 3)
    updater = training.StandardUpdater(chainer.iterators.SerialIterator(data, 4), optimizer)
    trainer = training.Trainer(updater, (3, "epoch"), out=str(out))
    trainer.extend(extensions.LogReport())
    trainer.extend(snapshots.extension(keep=2), trigger=(1, "iteration"))
    return trainer


def test_snapshots_are_whole_files_of_which_the_newest_are_kept(tmp_path):
    _trainer(tmp_path).run()
    assert sorted(os.listdir(tmp_path)) == ["log", "snapshot_iter_5.npz", "snapshot_iter_6.npz"]
    assert snapshots.newest(tmp_path) == str(tmp_path / "snapshot_iter_6.npz")


def test_the_newest_snapshot_is_that_of_the_latest_iteration(tmp_path):
    for name in ("snapshot_iter_9.npz", "snapshot_iter_10.npz", "snapshot_iter_8.npz", ".tmp-x.npz", "log"):
        (tmp_path / name).touch()
    assert snapshots.newest(tmp_path) == str(tmp_path / "snapshot_iter_10.npz")
    assert snapshots.newest(tmp_path / "none") is None


@pytest.fixture
def saved(tmp_path):
    _trainer(tmp_path).run()
    return tmp_path / "snapshot_iter_6.npz"


def test_a_snapshot_loads_into_a_trainer_of_the_same_kind(saved, tmp_path):
    trainer = _trainer(tmp_path)
    snapshots.load(saved, trainer)
    assert trainer.updater.iteration == 6


def test_a_snapshot_of_another_model_is_refused_before_anything_is_loaded(saved, tmp_path):
    trainer = _trainer(tmp_path, width=5)
    before = trainer.updater.get_optimizer("main").target.predictor.W.array.copy()
    message = r"snapshot_iter_6\.npz: a snapshot of another model: /predictor/W has shape \(3, 4\), here \(5, 4\)$"
    with pytest.raises(snapshots.SnapshotError, match=message):
        snapshots.load(saved, trainer)
    np.testing.assert_array_equal(trainer.updater.get_optimizer("main").target.predictor.W.array, before)
    assert trainer.updater.iteration == 0


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text", "folder"])
def test_a_corrupt_snapshot_is_named(saved, tmp_path, damage):
    content = bytearray(saved.read_bytes())
    if damage == "truncated":
        saved.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        middle = slice(len(content) // 3, len(content) // 3 + 200)  # long enough to hit an array, not just a header
        content[middle] = bytes(byte ^ 255 for byte in content[middle])
        saved.write_bytes(content)
    elif damage == "empty":
        saved.write_bytes(b"")
    elif damage == "text":
        saved.write_text("hello")
    else:
        saved.unlink()
        saved.mkdir()
    with pytest.raises(snapshots.SnapshotError, match=r"snapshot_iter_6\.npz: corrupt snapshot") as error:
        snapshots.load(saved, _trainer(tmp_path))
    assert "\n" not in str(error.value)


def test_a_model_file_is_no_snapshot(tmp_path):
    serializers.save_npz(tmp_path / "model.npz", L.Linear(2, 2))
    with pytest.raises(snapshots.SnapshotError, match="not a snapshot of a training run"):
        snapshots.load(tmp_path / "model.npz", _trainer(tmp_path))


def test_results_folder_is_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output.choose("here", None, "configs/digits.yaml") == "here"
    fresh = output.choose(None, "auto", "configs/digits.yaml")
    assert os.path.dirname(fresh) == os.path.join("results", "digits")
    assert not os.path.exists("results")
    for name in ("20250101-000000", "20260101-000000"):
        os.makedirs(os.path.join("results", "digits", name))
    assert output.choose(None, "auto", "configs/digits.yaml").endswith("20260101-000000")
    assert output.choose(None, "a/b/snapshot_iter_1.npz", "configs/digits.yaml") == "a/b"


def test_results_folder_is_checked_without_leaving_anything(tmp_path):
    output.check(str(tmp_path / "a" / "b"), None)
    assert os.listdir(tmp_path) == []
    (tmp_path / "log").touch()
    output.check(str(tmp_path), "auto")
    with pytest.raises(output.OutputError, match="already used; continue that run with --resume auto"):
        output.check(str(tmp_path), None)
    with pytest.raises(output.OutputError, match="not a folder"):
        output.check(str(tmp_path / "log"), None)
    with pytest.raises(output.OutputError, match="not writable"):
        output.check("/proc/results", None)


def test_what_a_killed_run_was_writing_is_cleared_away(tmp_path):
    (tmp_path / ".tmp-1.npz").touch()
    (tmp_path / "logab12").mkdir()
    (tmp_path / "logab12" / "log.json").touch()
    for name in ("log", "snapshot_iter_1.npz"):
        (tmp_path / name).touch()
    output.prepare(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["log", "snapshot_iter_1.npz"]
