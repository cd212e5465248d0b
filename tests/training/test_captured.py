"""Training with captured steps: the updater, the evaluation, and the log that nobody waits for."""

import json
import math

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers, training
from chainer.training import extensions
from hypothesis import given
from hypothesis import strategies as st

import mixprec
from mixprec import backends, graph_capture
from mixprec.app import config as configs
from mixprec.app.commands import train as command
from mixprec.app.parts import model as models
from mixprec.app.parts import trainer as trainers
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import settings as cudnn
from mixprec.backends.transfers import HostCopy
from mixprec.optimizer import ranks
from mixprec.training import CapturedUpdater, LogReport, LossScaleLog, log_report
from mixprec.training.evaluation import Evaluator
from mixprec.training.updater import TimedUpdater
from tests.cases import first
from tests.stand_ins import graph_array
from tests.stand_ins.graph_array import GraphArray
from tests.stand_ins.graph_on_host import GraphCuda
from tests.stand_ins.nccl_on_host import Communicator
from tests.stand_ins.twin_transport import Twins

# The log: on NumPy it is Chainer's, byte for byte

_numbers = st.floats(-1e4, 1e4, width=16)
_values = st.one_of(
    st.integers(-(10**12), 10**12),
    _numbers,
    *(_numbers.map(kind) for kind in (np.float16, np.float32, np.float64)),
    _numbers.map(lambda value: np.array(value, np.float32)),
    _numbers.map(lambda value: chainer.Variable(np.array(value, np.float16))),
    st.just(np.zeros(3, np.float32)),  # is no number: left out
)
_observed = _values | st.tuples(_values.filter(lambda value: np.ndim(getattr(value, "array", value)) == 0), st.just(3))
_observations = st.lists(st.dictionaries(st.sampled_from("abc"), _observed, max_size=3), min_size=1, max_size=8)


class Trainer:
    """What a log asks of a trainer."""

    is_before_training = False
    elapsed_time = 1.5

    class updater:
        epoch, iteration = 0, 0

    def __init__(self, out=None):
        self.out = out
        self.observation = {}


class Every:
    """A trigger that fires with each third call of a log."""

    def __init__(self):
        self.count = 0

    def __call__(self, trainer):
        self.count += 1
        return self.count % 3 == 0


NO_FILE = {LogReport: {"filename": None}, extensions.LogReport: {"log_name": None}}


def _log(kind, observations, target=None, **keywords):
    """A log of this kind after all observations."""
    log, trainer = kind(trigger=Every(), **NO_FILE[kind], **keywords), target or Trainer()
    for trainer.observation in observations:
        log(trainer)
    return log


def _saved(target):
    """What a file holds of it: bytes and dtype by name."""
    serializer = serializers.DictionarySerializer()
    target.serialize(serializer)
    return {name: (array.dtype, array.tobytes()) for name, array in serializer.target.items()}


@given(_observations, st.sampled_from([None, ["a", "c"]]))
def test_entries_and_snapshots_are_those_of_chainer(observations, keys):
    ours, chainers = (_log(kind, observations, keys=keys) for kind in (LogReport, extensions.LogReport))
    assert repr(ours.log) == repr(chainers.log)
    assert _saved(ours) == _saved(chainers)


@given(_observations, _observations, st.permutations([LogReport, extensions.LogReport]))
def test_each_goes_on_from_a_snapshot_of_the_other(before, after, kinds):
    serializer = serializers.DictionarySerializer()
    _log(kinds[0], before).serialize(serializer)
    saved = {name: np.asarray(array) for name, array in serializer.target.items()}
    logs = []
    for kind in kinds:
        log, trainer = kind(trigger=Every(), **NO_FILE[kind]), Trainer()
        log.serialize(serializers.NpzDeserializer(saved))
        for trainer.observation in after:
            log(trainer)
        logs.append(log)
    assert repr(logs[0].log) == repr(logs[1].log)
    assert _saved(logs[0]) == _saved(logs[1])


def test_a_number_that_json_lacks_is_null(tmp_path):
    log, trainer = LogReport(trigger=Every(), filename="{iteration}.jsonl"), Trainer(str(tmp_path))
    for value in (1.0, math.inf, -math.inf):
        trainer.observation = {"a": value, "b": np.float32(np.inf), "c": 2.0}
        log(trainer)
    assert math.isnan(log.log[0]["a"])
    entry = json.loads((tmp_path / "0.jsonl").read_text(), parse_constant=pytest.fail)
    assert (entry["a"], entry["b"], entry["c"]) == (None, None, 2)


def test_a_value_that_is_overwritten_later_counts_as_it_was():
    log, trainer, value = LogReport(trigger=Every(), filename=None), Trainer(), np.array(1, np.float32)
    for value[...] in (1, 2, 4):
        trainer.observation = {"a": value}
        log(trainer)
    assert log.log[0]["a"] == np.float32(7) / 3


# The log: what is on a device


class Device:
    """Numbers of a device, as a stand-in: who asks for one that has not been copied waits."""

    def __init__(self, monkeypatch):
        self.asked, self.waited = [], []
        self.copied = 0  # so many copies are done, in order
        monkeypatch.setattr(log_report, "on_host", lambda value: not isinstance(value, Number))
        monkeypatch.setattr(log_report, "to_host_async", self.fetch)

    def fetch(self, number):
        assert isinstance(number, Number)
        self.asked.append(number.value)
        return Copy(self, len(self.asked), number.value)


class Copy(HostCopy):
    def __init__(self, device, place, value):
        self._device, self._place, self._number = device, place, value

    @property
    def done(self):
        return self._device.copied >= self._place

    @property
    def value(self):
        if not self.done:
            self._device.waited.append(self._number)
            self._device.copied = self._place
        return self._number


class Number:
    """A number that only the device knows: any arithmetic on it would be a launch, any look at it a wait."""

    ndim = 0

    def __init__(self, value):
        self.value = value


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


def _losses(count):
    return np.random.RandomState(0).uniform(0, 10, count).astype(np.float32)


def test_a_log_waits_only_when_it_writes_an_entry(device):
    """Then for the copies that are not there, in the order of the steps; sums are Chainer's, in float32."""
    losses = _losses(7)
    log, trainer = LogReport(trigger=Every(), filename=None), Trainer()
    for count, loss in enumerate(losses, 1):
        trainer.observation = {"main/loss": Number(loss)}
        log(trainer)
        assert len(device.asked) == count
        assert device.waited == losses[: count // 3 * 3].tolist()
    assert log.log == _log(extensions.LogReport, [{"main/loss": loss} for loss in losses]).log


def test_copies_that_are_there_are_summed_at_once_and_let_go(device):
    summary = log_report.Summary()
    for count, loss in enumerate(_losses(9), 1):
        device.copied = max(0, count - 2)  # the last two are under way
        summary.add(Number(loss))
        assert len(summary._coming) == min(count, 2)
    assert device.waited == []


def test_a_later_copy_is_not_added_before_an_earlier_one(device):
    """Nor is a number of the host. In float32 the order decides: (2^24 + 1) + 1 is 2^24, 2^24 + (1 + 1) is not."""
    summary, order = log_report.Summary(), [np.float32(2**24), np.float32(1), 1.0]
    summary.add(Number(order[0]))
    summary.add(Number(order[1]), weight=1)
    summary.add(order[2])
    assert (summary._x, len(summary._coming)) == (0.0, 3)
    device.copied = 1
    summary.add(np.float32(1))
    assert summary._x == 2**24
    assert len(summary._coming) == 3
    assert summary.compute_mean() == np.float32(2**24) / 4
    assert device.waited == [1]


def test_a_snapshot_in_the_middle_of_an_interval_holds_the_sums(device):
    losses = _losses(5)
    log = _log(LogReport, [{"main/loss": Number(loss)} for loss in losses])
    assert device.waited == losses[:3].tolist()
    expected = _log(extensions.LogReport, [{"main/loss": loss} for loss in losses])
    assert _saved(log) == _saved(expected)
    assert device.waited == losses.tolist()


# The updater


class Model(chainer.Chain):
    """Reports, and takes a batch in any form."""

    def __init__(self):
        super().__init__(linear=L.Linear(4, 3, initialW=np.linspace(-1, 1, 12, dtype="f").reshape(3, 4)))

    def forward(self, x, t=None):
        loss = F.softmax_cross_entropy(self.linear(x), np.zeros(len(x), np.int32) if t is None else t)
        chainer.report({"loss": loss, "images": len(x)}, self)
        return loss


X = np.random.RandomState(0).normal(size=(10, 4)).astype(np.float32)
T = np.arange(10, dtype=np.int32) % 3
BATCHES = {
    "tuples": [(x, t) for x, t in zip(X, T, strict=True)],
    "dicts": [{"x": x, "t": t} for x, t in zip(X, T, strict=True)],
    "arrays": list(X),
}


def _updater(kind, data=BATCHES["tuples"], **keywords):
    model = Model()
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.1), 2.0**10).setup(model)
    if keywords.get("loss_func") == "twice":
        keywords["loss_func"] = lambda *args, **kwargs: 2 * model(*args, **kwargs)
    return kind(chainer.iterators.SerialIterator(data, 4, shuffle=False), optimizer, **keywords)


def _trainer(updater, out, evaluate=None):
    """Two epochs of 10 examples in batches of 4, with all that is around the steps."""
    optimizer = updater.get_optimizer("main")
    trainer = training.Trainer(updater, (2, "epoch"), out=str(out))
    test = chainer.iterators.SerialIterator(BATCHES["tuples"], 4, repeat=False, shuffle=False)
    trainer.extend(Evaluator(test, optimizer.target, eval_func=evaluate and evaluate(optimizer.target)))
    trainer.extend(extensions.observe_lr())
    trainer.extend(extensions.ExponentialShift("lr", 0.75), trigger=(1, "iteration"))
    trainer.extend(LogReport(trigger=(2, "iteration")))
    trainer.extend(extensions.snapshot(filename="{.updater.iteration}.npz"), trigger=(1, "iteration"))
    return trainer


def _without_times(log):
    return [{key: value for key, value in entry.items() if key != "elapsed_time"} for entry in log]


def _arrays(path):
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files if not name.endswith(("_log", "elapsed_time"))}


class Step:
    """In the place of what ``mixprec.capture`` returns: keeps what it was made of and called with."""

    def __init__(self, optimizer, lossfun=None, **keywords):
        self.made = optimizer, lossfun, keywords
        self.calls = []

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))


def test_the_step_is_made_of_the_optimizer_the_loss_function_and_the_keywords(monkeypatch):
    monkeypatch.setattr("mixprec.training.updater.capture", Step)
    updater = _updater(CapturedUpdater)
    defaults = {"warmup": 3, "graphs": 4, "other_shapes": "capture", "required": False, "second_stream": False}
    assert updater.step.made == (updater.get_optimizer("main"), None, defaults)
    others = {"warmup": 2, "graphs": 1, "other_shapes": "eager", "required": True, "second_stream": True}
    updater = _updater(CapturedUpdater, loss_func=len, device="@numpy", **others)
    assert updater.step.made == (updater.get_optimizer("main"), len, others)
    assert updater.device.xp is np


@pytest.mark.parametrize(("form", "loss_func"), [("tuples", None), ("dicts", "twice"), ("arrays", None)])
def test_a_run_on_the_host_is_the_run_of_the_standard_updater(tmp_path, form, loss_func):
    """Every snapshot and every entry of the log, with a schedule that changes the rate in every step."""
    logs = []
    for kind in (CapturedUpdater, training.StandardUpdater):
        updater = _updater(kind, BATCHES[form], loss_func=loss_func)
        evaluate = graph_capture.capture_evaluation if kind is CapturedUpdater else None
        trainer = _trainer(updater, tmp_path / kind.__name__, evaluate)
        trainer.run()
        logs.append(_without_times(trainer.get_extension("LogReport").log))
    assert logs[0] == logs[1]
    assert {"main/loss", "main/images", "validation/main/loss", "lr"} <= logs[0][-1].keys()
    for iteration in range(1, 6):
        captured, standard = (
            _arrays(tmp_path / kind / f"{iteration}.npz") for kind in ("CapturedUpdater", "StandardUpdater")
        )
        assert captured == standard


# The evaluation


def test_the_evaluation_calls_another_function_that_reports_for_the_model():
    """Three images in batches of 2 and 1; the mean is that over images."""
    calls = []

    class Reporting(chainer.Link):
        def forward(self, x):
            raise AssertionError("the model itself is called")

    def evaluate(x):
        calls.append((len(x), chainer.config.train, chainer.config.enable_backprop))
        chainer.report({"mean": x.mean()}, model)

    def convert(batch, device):
        return (np.array(batch, np.float32),)

    model, test = Reporting(), chainer.iterators.SerialIterator([0.0, 0.0, 3.0], 2, repeat=False, shuffle=False)
    evaluator = Evaluator(test, model, convert, eval_func=evaluate)
    for _ in range(2):
        assert evaluator() == {"main/mean": 1}
    assert calls == 2 * [(2, False, False), (1, False, False)]


def test_an_evaluation_waits_once_at_its_end(device):
    class Reporting(chainer.Link):
        def forward(self, x):
            assert device.waited == []
            chainer.report({"x": Number(x[0])}, self)

    values = _losses(4)
    test = chainer.iterators.SerialIterator(values, 1, repeat=False, shuffle=False)
    found = Evaluator(test, Reporting(), converter=lambda batch, device: (np.array(batch),))()
    assert device.waited == values.tolist()
    assert found == {"main/x": values.astype(np.float64).mean()}


# The command


def _build(tmp_path, monkeypatch, *overrides):
    """What a config with these overrides builds: the trainer, and what the evaluation was given to capture."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: {arch: a, classes: 3}\ndata: {train: t, val: v, size: 8}\noptimizer: {lr: 0.1}\n"
        "training: {batch_size: 2, epochs: 1, device: auto}\n"
    )
    config = configs.load(path, overrides)
    made = []
    monkeypatch.setattr("mixprec.training.updater.capture", Step)
    monkeypatch.setattr(
        graph_capture, "capture_evaluation", lambda *args, **keywords: made.append((args, keywords)) or len
    )
    for name in ("train_iterator", "val_iterator"):
        monkeypatch.setattr(trainers, name, lambda *_, **__: chainer.iterators.SerialIterator([0], 1))
    _, optimizer, _ = models.build_model(config, lambda classes: L.Linear(192, classes), "@numpy")
    return trainers.build_trainer(config, optimizer, range(6), range(6), str(tmp_path / "out")), made


def test_without_capture_there_are_no_graphs(tmp_path, monkeypatch):
    trainer, made = _build(tmp_path, monkeypatch)
    assert type(trainer.updater) is TimedUpdater
    assert made == []
    assert type(trainer.get_extension("LogReport")) is LogReport


ARRIVING = [
    (["capture=true"], {"graphs": 4, "other_shapes": "capture", "required": False}, True),
    (
        ["capture=required", "capture.max_graphs=9", "capture.dynamic_shapes=eager"] + ["capture.second_stream=true"],
        {"graphs": 9, "other_shapes": "eager", "required": True},
        False,
    ),
]


@pytest.mark.parametrize(("overrides", "keywords", "evaluation"), ARRIVING)
def test_every_key_of_the_config_arrives(tmp_path, monkeypatch, overrides, keywords, evaluation):
    second_stream = "capture.second_stream=true" in overrides
    trainer, made = _build(tmp_path, monkeypatch, *overrides, f"capture.evaluation={str(evaluation).lower()}")
    optimizer = trainer.updater.get_optimizer("main")
    of_step = {**keywords, "warmup": 3, "second_stream": second_stream}
    assert trainer.updater.step.made == (optimizer, None, of_step)
    assert made == ([((optimizer.target,), keywords)] if evaluation else [])
    assert trainer.get_extension("validation").eval_func is (len if evaluation else None)


def test_a_required_capture_that_fails_ends_the_command_with_one_line(monkeypatch, capsys):
    def fail(arguments, networks, ranks):
        raise CaptureError("model.py:3 reads")

    monkeypatch.setattr(command, "carry_out", fail)
    assert command.main(["--config", "c.yaml"], {}) == 1
    assert capsys.readouterr().err == "error: model.py:3 reads\n"


# Graphs, on the stand-in device that has them


@pytest.fixture(scope="module")
def cuda():
    """The primitives of the stand-in, whose graphs compute on the host."""
    cuda = GraphCuda()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends._OTHERS, GraphArray, cuda)
        yield cuda


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.norm = L.BatchNormalization(8)
            self.linear = L.Linear(8, 3)

    def forward(self, x):
        return self.linear(F.average_pooling_2d(F.relu(self.norm(self.conv(x))), x.shape[2]))


IMAGES = [(np.random.RandomState(place).normal(size=(3, 6, 6)).astype(np.float32), T[place]) for place in range(10)]


def _to_device(batch, device=None):
    return tuple(map(graph_array.array, chainer.dataset.concat_examples(batch)))


class Sharded(chainer.iterators.SerialIterator):
    """Of one of two ranks with the same images."""

    @property
    def images_of_all(self):
        return 2 * len(self._batch)

    def next(self):
        self._batch = super().next()
        return self._batch


def _on_device(kind, out, *, send=graph_array.send, converter=_to_device, snapshot=None, communicator=None, **keywords):
    """A run of 24 steps with overflows, logged and evaluated after each 4th, from its beginning or from a snapshot.

    Returns:
        ``(trainer, {iteration: (reads by the host so far, steps by a graph, evaluations by a graph)})``
    """
    np.random.seed(0)
    model = L.Classifier(Net())
    mixprec.convert(model, np.stack([image for image, _ in IMAGES[:2]]))
    send(model)
    optimizer = mixprec.MixedPrecisionOptimizer(
        optimizers.MomentumSGD(lr=0.1), mixprec.DynamicLossScale(init=2.0**20, interval=3), communicator=communicator
    ).setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
    iterator = Sharded(IMAGES, 4, shuffle=False)
    updater = kind(iterator, optimizer, converter=converter, **keywords)
    evaluate = graph_capture.capture_evaluation(model) if kind is CapturedUpdater else None
    trainer = training.Trainer(updater, (24, "iteration"), out=str(out))
    test = chainer.iterators.SerialIterator(IMAGES, 4, repeat=False, shuffle=False)
    trainer.extend(Evaluator(test, model, converter=converter, eval_func=evaluate), trigger=(4, "iteration"))
    trainer.extend(extensions.observe_lr())
    trainer.extend(extensions.ExponentialShift("lr", 0.9), trigger=(1, "iteration"))
    trainer.extend(LossScaleLog(optimizer), trigger=(4, "iteration"))
    trainer.extend(LogReport(trigger=(4, "iteration")))
    trainer.extend(extensions.snapshot(filename="{.updater.iteration}.npz"), trigger=(6, "iteration"))
    seen = {}

    def look(trainer):
        replays = [each.replays if each else 0 for each in (getattr(updater, "step", None), evaluate)]
        seen[updater.iteration] = (GraphArray.reads, *replays)

    trainer.extend(look, trigger=(1, "iteration"), priority=1000)  # before all that reads
    if snapshot is not None:
        serializers.load_npz(snapshot, trainer)
        for param in model.params():  # whose device is, for Chainer, that of NumPy
            state = param.update_rule.state
            state.update({name: graph_array.array(value) for name, value in state.items()})
    trainer.run()
    return trainer, seen


@pytest.fixture(scope="module")
def eager(cuda, tmp_path_factory):
    """The folder and the log of the run whose steps are all eager."""
    out = tmp_path_factory.mktemp("eager")
    trainer, _ = _on_device(TimedUpdater, out)
    log = _without_times(trainer.get_extension("LogReport").log)
    assert 0 < log[0]["skipped"] < log[-1]["skipped"] < 12  # overflows, among the captured steps too
    return out, log


def _assert_same_run(trainer, out, eager):
    assert _without_times(trainer.get_extension("LogReport").log) == eager[1]
    for path in out.glob("*.npz"):
        assert _arrays(path) == _arrays(eager[0] / path.name)


@pytest.mark.parametrize(
    "converter", first(1, [_to_device, lambda batch, device: chainer.dataset.concat_examples(batch)])
)
def test_a_run_of_graphs_is_the_eager_run(eager, tmp_path, converter):
    """Log, snapshots and evaluations, bit for bit; between log, evaluation and snapshot the host reads nothing."""
    trainer, seen = _on_device(CapturedUpdater, tmp_path, converter=converter)
    _assert_same_run(trainer, tmp_path, eager)
    assert len(list(tmp_path.glob("*.npz"))) == 4
    assert seen[24][1] == trainer.updater.step.replays >= 18
    assert seen[24][2] >= 5
    assert trainer.updater.step.why_not is None
    for iteration in range(6, 24):
        assert seen[iteration + 1][1] == seen[iteration][1] + 1
        if iteration % 4 and iteration % 6:
            assert seen[iteration + 1][0] == seen[iteration][0]


@pytest.mark.slow
def test_a_resumed_run_of_graphs_is_the_uninterrupted_one(eager, tmp_path):
    trainer, seen = _on_device(CapturedUpdater, tmp_path, snapshot=eager[0] / "6.npz")
    _assert_same_run(trainer, tmp_path, eager)
    assert (min(seen), max(seen)) == (7, 24)
    assert trainer.updater.step.replays > 0


@pytest.mark.slow
def test_a_captured_run_of_two_ranks_with_the_same_images_is_that_of_one(eager, tmp_path, monkeypatch):
    """Their means are what each has: log, snapshots and evaluations are the same, bit for bit."""
    monkeypatch.setattr(ranks, "MpiTransport", lambda mpi_comm: Twins())
    trainer, seen = _on_device(CapturedUpdater, tmp_path, communicator=Communicator(), ranks=2, device="@numpy")
    assert trainer.updater.step.why_not is None
    assert seen[24][1] == trainer.updater.step.replays >= 18
    _assert_same_run(trainer, tmp_path, eager)


def _loaded_after(step_of, place, scale):
    """Everything after 8 steps, when what was saved after the step at ``place`` has been loaded at once."""
    np.random.seed(0)
    model = L.Classifier(Net())
    mixprec.convert(model, np.stack([image for image, _ in IMAGES[:2]]))
    graph_array.send(model)
    scaler = mixprec.DynamicLossScale(init=scale, interval=20)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.1), scaler).setup(model)
    step = step_of(optimizer)
    for number in range(8):
        step(*_to_device(IMAGES[number % 3 : number % 3 + 4]))
        if number == place:
            saved = serializers.DictionarySerializer()
            _serialize(optimizer, saved)
            arrays = {name: np.array(value) for name, value in saved.target.items()}
            _serialize(optimizer, serializers.NpzDeserializer(arrays))
    saved = serializers.DictionarySerializer()
    _serialize(optimizer, saved)
    return {name: np.asarray(value).tobytes() for name, value in saved.target.items()}


def _serialize(optimizer, serializer):
    optimizer.serialize(serializer["optimizer"])
    optimizer.target.serialize(serializer["model"])


@pytest.mark.slow
@pytest.mark.parametrize(("place", "scale"), [(3, 2.0**10), (2, 2.0**20), (0, 2.0**10), (5, 2.0**20)])
def test_a_file_may_be_loaded_at_any_time(cuda, place, scale):
    """Loss scale and counters are then on the host until the next step: also if that is the one to be captured.

    The larger scale overflows at first.
    """

    def eager(optimizer):
        return lambda x, t: optimizer.update(optimizer.target, x, t)

    assert _loaded_after(mixprec.capture, place, scale) == _loaded_after(eager, place, scale)


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_the_eager_run(tmp_path):
    """With engines that give the same bits each time."""
    cudnn.configure(deterministic=True)
    logs = []
    for kind in (TimedUpdater, CapturedUpdater):
        trainer, _ = _on_device(
            kind,
            tmp_path / kind.__name__,
            send=lambda model: model.to_device("@cupy:0"),
            converter=lambda batch, device: chainer.dataset.concat_examples(batch, chainer.get_device("@cupy:0")),
        )
        logs.append(_without_times(trainer.get_extension("LogReport").log))
    assert logs[0] == logs[1]
    assert trainer.updater.step.replays >= 18, trainer.updater.step.report()
    for path in (tmp_path / "TimedUpdater").glob("*.npz"):
        assert _arrays(path) == _arrays(tmp_path / "CapturedUpdater" / path.name)


@pytest.mark.gpu
def test_the_log_of_values_on_a_gpu_is_that_of_chainer():
    import cupy

    observations = [{"a": cupy.asarray(loss), "b": (cupy.asarray(loss), 3), "c": 0.5} for loss in _losses(8)]
    ours, chainers = (_log(kind, observations) for kind in (LogReport, extensions.LogReport))
    assert repr(ours.log) == repr(chainers.log)
    assert _saved(ours) == _saved(chainers)
