"""The parts of a training run: optimizer, evaluation, console, plots, snapshots, results folder, atomic files."""

import contextlib
import math
import os
import types

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers, training
from chainer.training import extensions

import mixprec
from mixprec.app import config
from mixprec.app.config.schema import Optimizer
from mixprec.app.parts.optimizers import attribute, build_optimizer
from mixprec.app.run import output
from mixprec.backends.transfers import HostCopy
from mixprec.base import files
from mixprec.distributed.processes import Alone
from mixprec.training import LogReport, console, snapshots
from mixprec.training.plots import Plots
from mixprec.training.schedule import Rates, Schedule
from mixprec.training.updater import Throughput

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


def test_the_loss_scale_of_a_config(tmp_path):
    keys = {"init_scale": 8, "growth_factor": 4, "backoff_factor": 0.25, "growth_interval": 3, "min_scale": 2}
    keys |= {"max_scale": 64, "hysteresis": 2, "patience": 5, "search": "true"}
    settings = {f"loss_scale.{key}": value for key, value in {"mode": "dynamic", **keys}.items()}
    scale = _optimizer(tmp_path, **{"optimizer.name": "SGD", "optimizer.lr": 0.1, **settings})._scaler
    names = ("init", "growth", "backoff", "interval", "floor", "cap", "hysteresis", "patience", "search")
    assert [getattr(scale, name) for name in names] == [8, 4, 0.25, 3, 2, 64, 2, 5, True]


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_of_the_schema_takes_a_step(tmp_path, name):
    optimizer = _optimizer(
        tmp_path,
        **{"optimizer.name": name, "optimizer.lr": 0.25, "optimizer.weight_decay": 0.5},
        **{"schedule.kind": "constant"},
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


@pytest.mark.slow
def test_adamw_of_a_config_is_pytorchs_while_the_learning_rate_changes(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    settings = {"optimizer.name": "AdamW", "optimizer.lr": 0.1, "optimizer.weight_decay": 0.3}
    optimizer = _optimizer(tmp_path, **settings, **{"optimizer.decay_norm_and_bias": "true"})
    found, rng = optimizer.master(optimizer.target.W), np.random.default_rng(0)
    expected = torch.tensor(found.array.astype(np.float64), requires_grad=True)
    adamw = torch.optim.AdamW([expected], 0.1, weight_decay=0.3)
    adamw.state[expected] = {  # after the step that has been taken
        "step": torch.tensor(1.0),
        "exp_avg": torch.full(expected.shape, 0.1 * 0.5, dtype=torch.float64),
        "exp_avg_sq": torch.full(expected.shape, 0.001 * 0.25, dtype=torch.float64),
    }
    rates = Rates(settings=config.run.Schedule(kind="cosine"), peak=0.1, epochs=6, stages=((6.0, 1.0, 1.0),))
    schedule = Schedule(optimizer, attribute("AdamW"), rates.at)
    for epoch in range(1, 6):
        schedule(types.SimpleNamespace(updater=types.SimpleNamespace(epoch_detail=epoch)))
        adamw.param_groups[0]["lr"] = 0.05 * (1 + np.cos(np.pi * epoch / 6))
        gradient = rng.integers(-8, 9, expected.shape) / 8  # exact in float16
        expected.grad = torch.tensor(gradient)
        for param in optimizer.target.params():
            param.grad = np.broadcast_to(gradient[0], param.shape).astype(param.dtype)
        optimizer.target.W.grad = gradient.astype(optimizer.target.W.dtype)
        optimizer.update()
        adamw.step()
        np.testing.assert_allclose(found.array, expected.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize(("norm", "share"), [(5**0.5 / 2, 0.5), (3, 1)])
def test_clipping_of_a_config_comes_before_weight_decay(tmp_path, norm, share):
    """The gradients of W and b have the norms 2 and 1."""
    settings = {"optimizer.name": "SGD", "optimizer.lr": 0.25, "optimizer.weight_decay": 0.5}
    optimizer = _optimizer(tmp_path, **settings, **{"optimizer.clip_norm": norm})
    np.testing.assert_allclose(optimizer.master(optimizer.target.W).array, 1 - 0.25 * (0.5 * share + 0.5), rtol=1e-5)
    np.testing.assert_allclose(optimizer.master(optimizer.target.b).array, 1 - 0.25 * 0.5 * share, rtol=1e-5)


def test_images_per_second_are_those_since_the_entry_before():
    updater = types.SimpleNamespace(epoch_detail=0.5, seconds=2.0, wait=lambda: None)
    trainer = types.SimpleNamespace(updater=updater, observation={})
    throughput = Throughput(images=100)
    throughput.initialize(trainer)
    for updater.epoch_detail, updater.seconds, expected in ((1.0, 4.0, 25), (2.0, 14.0, 10), (2.5, 15.0, 50)):
        throughput(trainer)
        assert trainer.observation == {"images/s": expected}


def test_console_lines_come_whole_and_without_cursor_controls(capsys):
    lines = console.Lines()
    for part in ("\033[J", "epoch  ", "1\n", "\033[J2"):
        lines.write(part)
    lines.flush()
    assert capsys.readouterr().out == "epoch  1\n"


class Bar:
    """What a progress bar was told, in place of tqdm's."""

    disable = False

    def __init__(self, total=0, initial=0, desc=None, **_):
        self.total, self.n, self.text = total, initial, desc
        self.postfixes, self.open = [], True

    def update(self, images):
        self.n += images

    def set_description(self, text, refresh):
        self.text = text

    def set_postfix(self, values, refresh):
        self.postfixes.append(dict(values))

    def close(self):
        self.open = False


class Coming(HostCopy):
    """A number that arrives when the test says so."""

    done = False


def test_the_bar_shows_what_is_there_and_waits_for_nothing(monkeypatch):
    class Trainer:
        class updater:
            epoch_detail = 1.25

        observation = {}  # noqa: RUF012

    fetched = []
    monkeypatch.setattr(console, "tqdm", Bar)
    monkeypatch.setattr(console, "to_host_async", lambda value: fetched.append(Coming(value)) or fetched[-1])
    progress = console.ProgressBar(images=8, epochs=3)
    progress.initialize(Trainer)
    bar = progress._bar
    assert (bar.total, bar.n) == (24, 10)
    Trainer.updater.epoch_detail = 1.5
    for loss, scale in ((3.0, None), (2.0, 65536.0), (1.0, None), (0.5, None)):
        Trainer.observation = {"main/loss": np.float32(loss), **({} if scale is None else {"loss_scale": scale})}
        progress(Trainer)
        if loss == 2:
            fetched[0].done = True  # that of the first step has arrived
    assert (bar.n, bar.text) == (12, "epoch 2/3")
    assert [copy.value for copy in fetched] == [3, 0.5]  # one at a time
    assert bar.postfixes == [{"loss_scale": "65536"}, {"loss_scale": "65536", "loss": "3"}]
    Trainer.updater.epoch_detail = 3.0
    progress(Trainer)
    assert bar.text == "epoch 3/3"
    progress.finalize()
    assert not bar.open


class Batches(chainer.dataset.Iterator):
    """Batches of 2 and 1 images, or of 2 and 2, the last of which is padding."""

    def __init__(self, last=1):
        self._last = last

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop()

    def reset(self):
        self.left = [(np.zeros(self._last),), (np.ones(2),)]


@pytest.mark.parametrize("last", [1, 2])
def test_an_evaluation_has_a_bar_of_its_own(monkeypatch, last):
    bars, called = [], []
    monkeypatch.setattr(console, "tqdm", lambda **keywords: bars.append(Bar(**keywords)) or bars[-1])
    shown = console.Shown(Batches(last), 3, before_batch=lambda: called.append(bars[-1].n))
    for _ in range(2):
        shown.reset()
        assert [len(batch[0]) for batch in shown] == [2, last]
        assert (bars[-1].total, bars[-1].n, bars[-1].text, bars[-1].open) == (3, 3, "validation", False)
    assert called == [0, 2, 0, 2]
    shown.reset()
    next(shown)
    shown.finalize()
    assert not bars[-1].open


def test_without_a_terminal_there_are_only_lines(capsys):
    shown = console.Shown(Batches(), 3)
    shown.reset()
    list(shown)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("classes", "validation", "columns"), [(5, True, 9), (6, True, 10), (6, False, 7)])
def test_the_table_has_the_columns_that_there_are_values_for(classes, validation, columns, capsys):
    class Trainer:
        class log_report(extensions.LogReport):
            _log = [{"epoch": 1, "validation/main/accuracy_top5": 0.5, "lr": 0.25}]  # noqa: RUF012

            def __init__(self):
                pass

        def get_extension(self, name):
            return self.log_report()

    console.Table(classes, validation)(Trainer())
    header, line = capsys.readouterr().out.splitlines()
    assert len(header.split()) == columns
    assert ("accuracy_top5" in header) == (line.split() == ["1", "0.5", "0.25"]) == (columns == 10)
    resumed = console.Table(classes, validation)
    resumed.initialize(Trainer())
    resumed(Trainer())
    assert len(capsys.readouterr().out.splitlines()) == 1  # the header: the entry was printed before


@pytest.mark.slow
def test_plots_are_drawn_from_the_log(tmp_path):
    class Trainer:
        out = str(tmp_path)

    log = extensions.LogReport()
    # A skipped step has no norm.
    log._log = [{"iteration": i, "main/loss": 1 / i, "loss_scale": 2.0**i} for i in (1, 2)]
    log._log[0]["gradient_norm"] = 0.5
    Plots(log, types.SimpleNamespace(start=lambda iteration: iteration * 0.5))(Trainer)
    names = {"loss.png", "accuracy.png", "loss_scale.png", "gradient_norm.png", "learning_rate.png"}
    names.add("images_per_second.png")
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


def _trainer(out, width=3, keep=2, accuracies=None):
    model = L.Classifier(L.Linear(4, width))
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam()).setup(model)
    data = chainer.datasets.TupleDataset(np.ones((8, 4), np.float32), np.arange(8, dtype=np.int32) % 3)
    updater = training.StandardUpdater(chainer.iterators.SerialIterator(data, 4), optimizer)
    trainer = training.Trainer(updater, (3, "epoch"), out=str(out))
    trainer.extend(LogReport())
    if accuracies is not None:
        trainer.extend(lambda trainer: _report(trainer, accuracies), name="evaluation", trigger=(1, "iteration"))
        trainer.extend(snapshots.BestSnapshot(str(out), Alone(), contextlib.nullcontext))
    trainer.extend(snapshots.extension(keep=keep), trigger=(1, "iteration"))
    return trainer


def _report(trainer, accuracies):
    accuracy = accuracies[trainer.updater.iteration - 1]
    if accuracy is not None:
        trainer.observation["validation/main/accuracy"] = accuracy


def test_snapshots_are_whole_files_of_which_the_newest_are_kept(tmp_path):
    _trainer(tmp_path).run()
    assert sorted(os.listdir(tmp_path)) == ["log.jsonl", "snapshot_iter_5.npz", "snapshot_iter_6.npz"]
    assert snapshots.newest(tmp_path) == str(tmp_path / "snapshot_iter_6.npz")


def _best(out):
    """Iteration and accuracy of the best snapshot."""
    with np.load(out / "snapshot_best.npz") as archive:
        return int(archive["updater/iteration"]), float(archive["extensions/BestSnapshot/value"])


ACCURACIES = [
    ([0.1, None, 0.5, 0.4, 0.5, 0.3], (3, 0.5)),  # of equal ones the first
    ([0.1, 0.2, 0.3, 0.4, 0.5, np.float32(0.625)], (6, 0.625)),
    ([0.0, math.nan, 0.0, None, None, None], (1, 0.0)),
    ([None, None, math.nan, 0.25, None, None], (4, 0.25)),
]


@pytest.mark.parametrize(("accuracies", "best"), ACCURACIES)
def test_the_best_snapshot_is_kept_beside_the_newest(tmp_path, accuracies, best):
    _trainer(tmp_path, accuracies=accuracies).run()
    assert _best(tmp_path) == best
    names = {name for name in os.listdir(tmp_path) if name.startswith("snapshot")}
    assert names == {"snapshot_iter_5.npz", "snapshot_iter_6.npz", "snapshot_best.npz"}
    trainer = _trainer(tmp_path, accuracies=accuracies)
    snapshots.load(tmp_path / "snapshot_best.npz", trainer)
    assert trainer.updater.iteration == best[0]


@pytest.mark.parametrize(("later", "best"), [(0.5, (3, 0.5)), (0.6, (5, 0.6))])
def test_the_best_snapshot_survives_a_resume(tmp_path, later, best):
    """Also one that is from later than the snapshot from which the run goes on."""
    _trainer(tmp_path, keep=6, accuracies=[0.1, 0.2, 0.5, 0.4, 0.3, 0.2]).run()
    for iteration in (5, 4, 3):
        (tmp_path / f"snapshot_iter_{iteration + 1}.npz").unlink()
        trainer = _trainer(tmp_path, accuracies=[0.1, 0.2, 0.5, 0.4, later, 0.2])
        snapshots.load(tmp_path / f"snapshot_iter_{iteration}.npz", trainer)
    assert trainer.updater.iteration == 3
    (tmp_path / "snapshot_iter_3.npz").unlink()
    trainer = _trainer(tmp_path, accuracies=[0.1, 0.2, 0.5, 0.4, later, 0.2])
    snapshots.load(tmp_path / "snapshot_iter_2.npz", trainer)
    trainer.run()
    assert _best(tmp_path) == best


def test_a_corrupt_best_snapshot_is_named(tmp_path):
    _trainer(tmp_path, accuracies=[0.5] * 6).run()
    (tmp_path / "snapshot_best.npz").write_bytes(b"no")
    message = r"snapshot_best\.npz: corrupt snapshot.*; remove it, and a later best snapshot replaces it$"
    with pytest.raises(snapshots.SnapshotError, match=message):
        snapshots.load(tmp_path / "snapshot_iter_6.npz", _trainer(tmp_path, accuracies=[0.5] * 6))


@pytest.mark.parametrize("killed", [0, 1])
def test_after_a_resume_no_more_snapshots_are_kept(tmp_path, killed):
    """Nor if the process was killed between a snapshot and the removal of the oldest one."""
    _trainer(tmp_path, keep=2 + killed).run()
    (tmp_path / "snapshot_iter_6.npz").unlink()
    trainer = _trainer(tmp_path)
    snapshots.load(tmp_path / "snapshot_iter_5.npz", trainer)
    trainer.run()
    names = sorted(name for name in os.listdir(tmp_path) if name.startswith("snapshot"))
    assert names == ["snapshot_iter_5.npz", "snapshot_iter_6.npz"]


def test_a_run_does_not_go_on_below_its_own_future(tmp_path):
    _trainer(tmp_path).run()
    path = tmp_path / "snapshot_iter_5.npz"
    message = r"snapshot_iter_5\.npz: of iteration 5, and .* has later snapshots, up to .*snapshot_iter_6\.npz; remove"
    with pytest.raises(snapshots.SnapshotError, match=message):
        snapshots.check_newest(path, 5, tmp_path)
    snapshots.check_newest(path, 6, tmp_path)
    snapshots.check_newest(path, 5, tmp_path / "elsewhere")


def test_the_newest_snapshot_is_that_of_the_latest_iteration(tmp_path):
    for name in ("snapshot_iter_9.npz", "snapshot_iter_10.npz", "snapshot_iter_8.npz", ".tmp-x.npz", "log"):
        (tmp_path / name).touch()
    assert snapshots.newest(tmp_path) == str(tmp_path / "snapshot_iter_10.npz")
    assert snapshots.newest(tmp_path / "none") is None


@pytest.fixture
def saved(tmp_path):
    _trainer(tmp_path).run()
    return tmp_path / "snapshot_iter_6.npz"


def test_a_snapshot_of_another_model_is_refused_before_anything_is_loaded(saved, tmp_path):
    trainer = _trainer(tmp_path, width=5)
    before = trainer.updater.get_optimizer("main").target.predictor.W.array.copy()
    message = r"snapshot_iter_6\.npz: a snapshot of another model: /predictor/W has shape \(3, 4\), here \(5, 4\)$"
    with pytest.raises(snapshots.SnapshotError, match=message):
        snapshots.load(saved, trainer)
    np.testing.assert_array_equal(trainer.updater.get_optimizer("main").target.predictor.W.array, before)
    assert trainer.updater.iteration == 0


@pytest.mark.parametrize("damage", ["truncated", "flipped", "folder"])
def test_a_corrupt_snapshot_is_named(saved, tmp_path, damage):
    content = bytearray(saved.read_bytes())
    if damage == "truncated":
        saved.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        middle = slice(len(content) // 3, len(content) // 3 + 200)  # long enough to hit an array, not just a header
        content[middle] = bytes(byte ^ 255 for byte in content[middle])
        saved.write_bytes(content)
    else:
        saved.unlink()
        saved.mkdir()
    then = r"; remove it, and --resume auto goes on from \S*snapshot_iter_5\.npz$"
    with pytest.raises(snapshots.SnapshotError, match=r"snapshot_iter_6\.npz: corrupt snapshot.*" + then) as error:
        snapshots.load(saved, _trainer(tmp_path))
    assert "\n" not in str(error.value)
    (tmp_path / "snapshot_iter_5.npz").unlink()
    with pytest.raises(snapshots.SnapshotError, match=r"; remove it, and --resume auto starts afresh$"):
        snapshots.load(saved, _trainer(tmp_path))


@pytest.mark.parametrize("value", [np.zeros((2, 3)), np.array(1 + 2j), np.array("2020", "M8[s]")])
def test_a_snapshot_with_something_else_in_place_of_a_number_is_one_line(saved, tmp_path, value):
    arrays = snapshots.read(saved)
    for name in [name for name, array in arrays.items() if array.shape == () and array.dtype.kind in "iuf"]:
        with pytest.raises(snapshots.SnapshotError, match=r"snapshot_iter_6\.npz: (not a snapshot of this run|a snap)"):
            snapshots.load(saved, _trainer(tmp_path), arrays | {name: value})


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
    for arguments in (("", None), (None, "")):  # as of a variable of the shell that is not set
        with pytest.raises(output.OutputError, match="is empty; give a"):
            output.choose(*arguments, "configs/digits.yaml")


def test_results_folder_is_checked_without_leaving_anything(tmp_path):
    output.check_writable(str(tmp_path / "a" / "b"))
    assert output.snapshot_to_resume(str(tmp_path / "a"), None) is None
    assert os.listdir(tmp_path) == []
    (tmp_path / "run.lock").touch()
    assert output.snapshot_to_resume(str(tmp_path), None) is None
    (tmp_path / "log").touch()
    output.check_writable(str(tmp_path))
    with pytest.raises(output.OutputError, match="holds no run, but other files; give another --out"):
        output.snapshot_to_resume(str(tmp_path), "auto")
    (tmp_path / "config.yaml").touch()
    assert output.snapshot_to_resume(str(tmp_path), "auto") is None
    (tmp_path / "snapshot_iter_3.npz").touch()
    own = str(tmp_path / "snapshot_iter_3.npz")
    assert output.snapshot_to_resume(str(tmp_path), own) == own
    with pytest.raises(output.OutputError, match=r"already used, by a run that /elsewhere/s\.npz does not"):
        output.snapshot_to_resume(str(tmp_path), "/elsewhere/s.npz")
    with pytest.raises(output.OutputError, match="already used; continue that run with --resume auto"):
        output.snapshot_to_resume(str(tmp_path), None)
    for path, words in (
        (str(tmp_path / "log"), "log: not a folder"),
        (str(tmp_path / "log" / "a"), "log/a: not a folder"),
        ("/proc/results", "/proc/results: not writable"),
        (str(tmp_path / "new" / ("a" * 256)), "a: a name is too long"),
        ("a\0b", r"a\\x00b: not a folder"),
    ):
        with pytest.raises(output.OutputError, match=words):
            output.check_writable(path)


def test_what_earlier_runs_have_said_is_kept_under_numbers(tmp_path):
    path = tmp_path / "config.yaml"
    output.write(str(path), "one", resumed=True)
    output.write(str(path), "one", resumed=True)
    assert os.listdir(tmp_path) == ["config.yaml"]
    output.write(str(path), "two", resumed=True)
    output.write(str(path), "three", resumed=True)
    output.write(str(path), "four", resumed=False)
    read = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert read == {"config.1.yaml": "one", "config.2.yaml": "two", "config.yaml": "four"}


@pytest.mark.parametrize("resumed", [True, False])
def test_what_a_killed_run_has_left_is_cleared_away(tmp_path, resumed):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events").touch()
    own = {"config.yaml", "snapshot_iter_1.npz"}
    of_run = {"log.jsonl", "snapshot_best.npz", "gradients.jsonl", "status.json"}
    for name in (".tmp-1.npz", *of_run, *own):
        (tmp_path / name).touch()
    output.prepare(tmp_path, resumed=resumed)
    assert set(os.listdir(tmp_path)) == own | ({*of_run, "tensorboard"} if resumed else set())
    with output.created(tmp_path / "new"):
        output.prepare(tmp_path / "new", resumed=resumed)
        assert os.listdir(tmp_path / "new") == ["run.lock"]
    assert os.listdir(tmp_path / "new") == []
