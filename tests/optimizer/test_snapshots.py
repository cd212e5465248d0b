"""Snapshots of MixedPrecisionOptimizer: going on bitwise, files in FP32, and the ways between plain and wrapped."""

import contextlib
import copy
import functools
import io
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers, training
from hypothesis import given, settings
from hypothesis import strategies as st

import mixprec
from mixprec import functions, links
from tests.cases import pairs, tries

# plain: Chainer alone; bfloat16: the links of mixprec, wrapped; the others: converted to that dtype, and wrapped
KINDS = ("plain", "float32", "float16", "bfloat16")
HALVES = pytest.mark.parametrize("kind", KINDS[2:])
ORDERS = (("optimizer", "model"), ("model", "optimizer"))
INITIAL_SCALE = 2.0**10

# A run is written as one character a step, "x" for a poisoned batch. These leave every counter at another value than a
# fresh optimizer has: the first in the middle of clean steps, the second in the middle of overflows.
COUNTERS = {
    ".x.": (
        {"skipped": 1, "last_step_skipped": False, "loss_scale/value": INITIAL_SCALE, "loss_scale/clean": 1}
        | {"loss_scale/hysteresis_left": 1, "loss_scale/overflows_in_row": 0}
    ),
    ".xx": (
        {"skipped": 2, "last_step_skipped": True, "loss_scale/value": INITIAL_SCALE / 2, "loss_scale/clean": 0}
        | {"loss_scale/hysteresis_left": 0, "loss_scale/overflows_in_row": 2}
    ),
}


class Net(chainer.Chain):
    """Linear layers and batch norm, so that there are FP16 and FP32 parameters and statistics.

    No gradient is exactly zero, about which Chainer's MSVAG would warn: tanh, and no bias before the batch norm.
    """

    def __init__(self, lazy):
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(None if lazy else 5, 6, nobias=True)
            self.bn = L.BatchNormalization(6)
            self.out = L.Linear(None if lazy else 6, 3)

    def forward(self, x):
        return self.out(F.tanh(self.bn(self.hidden(x))))


class NetOfMixprec(Net):
    """The same parameters, of the links of mixprec."""

    def __init__(self, lazy, dtype):
        chainer.Chain.__init__(self)
        with self.init_scope():
            self.hidden = links.Linear(None if lazy else 5, 6, nobias=True, dtype=dtype)
            self.bn = links.BatchNormalization(6)
            self.out = links.Linear(None if lazy else 6, 3, dtype=dtype)

    def forward(self, x):
        return self.out(self.bn(self.hidden(functions.cast(x, self.out.W.dtype)), relu=True))


class Storage:
    """The files of one run, in one of Chainer's two formats."""

    def __init__(self, form, folder):
        self._save = getattr(serializers, f"save_{form}")
        self._load = getattr(serializers, f"load_{form}")
        self._form, self._folder = form, folder

    def save(self, optimizer, parts=ORDERS[0]):
        for part in parts:
            self.write(part, _part(optimizer, part))

    def load(self, optimizer, parts=ORDERS[0]):
        for part in parts:
            self._load(self._path(part), _part(optimizer, part))

    def write(self, part, what):
        self._save(self._path(part), what)

    def read(self, part):
        """Returns the arrays of a file by name."""
        if self._form == "npz":
            with np.load(self._path(part)) as file:
                return dict(file)
        h5py = pytest.importorskip("h5py")
        arrays = {}

        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                arrays[name] = np.asarray(item)

        with h5py.File(self._path(part)) as file:
            file.visititems(visit)
        return arrays

    def _path(self, part):
        return self._folder / f"{part}.{self._form}"


@pytest.fixture(params=["npz", pytest.param("hdf5", marks=pytest.mark.slow)])
def storage(request, tmp_path):
    if request.param == "hdf5":
        pytest.importorskip("h5py")
    return Storage(request.param, tmp_path)


def _part(optimizer, part):
    return optimizer if part == "optimizer" else optimizer.target


def _optimizer(kind="float16", inner="Adam", *, lazy=False, seed=0, patience=50, loss_scale=None):
    np.random.seed(seed)
    model = L.Classifier(Net(lazy))
    if kind == "bfloat16":
        model = L.Classifier(NetOfMixprec(lazy, kind), functions.softmax_cross_entropy)
        model.compute_accuracy = False  # by Chainer, which refuses bfloat16
    optimizer = getattr(mixprec if inner in ("LARS", "ScheduleFreeSGD") else optimizers, inner)()
    if kind != "plain":
        if kind != "bfloat16":
            mixprec.convert(model, compute=kind)
        if loss_scale is None:
            loss_scale = mixprec.DynamicLossScale(init=INITIAL_SCALE, interval=2, hysteresis=2, patience=patience)
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, loss_scale)
    return optimizer.setup(model)


def _batches(plan, first=0):
    for step, mark in enumerate(plan, first):
        random = np.random.RandomState(step)
        x = random.normal(size=(4, 5)).astype(np.float32)
        if mark == "x":
            x[0, 0] = np.inf
        yield x, random.randint(0, 3, 4).astype(np.int32)


def _run(optimizer, plan, first=0):
    for batch in _batches(plan, first):
        optimizer.update(optimizer.target, *batch)
    return optimizer


def _serialized(what):
    """What a file would hold, by name; copies."""
    serializer = serializers.DictionarySerializer()
    serializer.save(what)
    return {name: np.array(value) for name, value in serializer.target.items()}


def _weights(optimizer):
    """The weights in FP32, by the names of a model's file; copies."""
    wrapped = isinstance(optimizer, mixprec.MixedPrecisionOptimizer)
    return {
        name.lstrip("/"): (optimizer.master(param) if wrapped else param).array.copy()
        for name, param in optimizer.target.namedparams()
    }


def _state(optimizer):
    """All that going on depends on, by name; copies."""
    parts = {"optimizer": _serialized(optimizer), "model": _serialized(optimizer.target), "weight": _weights(optimizer)}
    return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}


def _counters(arrays, prefix=""):
    """The wrapper's own values in a file, by the names of COUNTERS."""
    prefix += "mixprec/"
    own = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
    return {name: value.item() for name, value in own.items() if name != "rule"}


def _assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name, strict=True)


def _but_counters(state):
    return {name: value for name, value in state.items() if not name.startswith("optimizer/mixprec/")}


def _assert_more_than_fp16(weights):
    assert any((weight != weight.astype(np.float16)).any() for weight in weights.values())


@contextlib.contextmanager
def _warns_once():
    with pytest.warns(UserWarning, match="no loss scale: it starts afresh") as caught:
        yield
    assert len(caught) == 1


# Going on equals never having stopped.


RESUMED = pairs(ORDERS, ["Adam", "MSVAG", "ScheduleFreeSGD", "AMSBound"], list(COUNTERS), KINDS[2:])


@pytest.mark.parametrize(("order", "inner", "before", "kind"), RESUMED)
def test_a_resumed_run_is_bitwise_one_that_never_stopped(storage, order, inner, before, kind):
    """Save, load into a fresh run, go on: the same scale, counters, masters, optimizer state, t and statistics."""
    after = ".x..x"
    interrupted = _run(_optimizer(kind, inner), before)
    storage.save(interrupted, order)

    resumed = _optimizer(kind, inner, seed=1)
    storage.load(resumed, order)
    assert _counters(_serialized(resumed)) == COUNTERS[before]
    _assert_same(_state(resumed), _state(interrupted))

    _run(resumed, after, first=len(before))
    _assert_same(_state(resumed), _state(_run(_optimizer(kind, inner), before + after)))


@pytest.mark.parametrize("before", COUNTERS)
def test_a_trainer_that_loads_its_snapshot_by_itself_is_bitwise_one_that_never_stopped(before, tmp_path):
    """snapshot(autoload=True) in a trainer, with overflows before and after the save."""

    def train(until, folder, seed=0):
        optimizer = _optimizer(seed=seed)
        data = chainer.datasets.TupleDataset(*map(np.concatenate, zip(*_batches(before + ".x."), strict=True)))
        updater = training.updaters.StandardUpdater(chainer.iterators.SerialIterator(data, 4, shuffle=False), optimizer)
        trainer = training.Trainer(updater, (until, "iteration"), out=tmp_path / folder)
        trainer.extend(training.extensions.snapshot(autoload=True), trigger=(3, "iteration"))
        trainer.run()
        assert updater.iteration == until
        return optimizer

    train(3, "interrupted")
    with np.load(tmp_path / "interrupted" / "snapshot_iter_3") as snapshot:
        assert _counters(snapshot, "updater/optimizer:main/") == COUNTERS[before]
    resumed = train(6, "interrupted", seed=1)
    assert resumed.skipped == COUNTERS[before]["skipped"] + 1
    _assert_same(_state(resumed), _state(train(6, "whole")))


@settings(max_examples=tries(50))
@given(
    kind=st.sampled_from(KINDS[2:]),
    before=st.text("x.", max_size=4),
    after=st.text("x.", max_size=4),
    order=st.sampled_from(ORDERS),
)
def test_a_run_resumes_bitwise_wherever_it_overflowed_and_stopped(kind, before, after, order):
    """Any pattern of overflows, and any save point, also before the first step that counts."""
    interrupted, resumed = _run(_optimizer(kind), before), _optimizer(kind, seed=1)
    for part in order:
        file = io.BytesIO()
        serializers.save_npz(file, _part(interrupted, part), compression=False)
        file.seek(0)
        serializers.load_npz(file, _part(resumed, part))
    _run(resumed, after, first=len(before))
    _assert_same(_state(resumed), _state(_run(_optimizer(kind), before + after)))


def test_overflows_before_the_save_count_towards_patience(storage):
    """The third overflow in a row is the last one, though the first two were before the save."""
    storage.save(_run(_optimizer(), ".xx"))
    resumed = _optimizer(seed=1, patience=3)
    storage.load(resumed)
    with pytest.raises(mixprec.LossScaleExhausted, match="3 steps in a row"):
        _run(resumed, "x", first=3)


@pytest.mark.parametrize("scale", [mixprec.NoLossScale, functools.partial(mixprec.StaticLossScale, 4)])
def test_overflows_before_the_save_count_with_a_constant_scale_too(storage, scale):
    storage.save(_run(_optimizer(loss_scale=scale(50)), ".xx"))
    resumed = _optimizer(seed=1, loss_scale=scale(3))
    storage.load(resumed)
    with pytest.raises(mixprec.LossScaleExhausted, match="3 steps in a row"):
        _run(resumed, "x", first=3)


@pytest.mark.parametrize(("order", "kind"), list(zip(ORDERS, KINDS[2:], strict=True)))
def test_a_file_initializes_lazy_parameters_without_losing_bits(storage, order, kind):
    """The masters of parameters that get their shape from the file are those of the file, not rounded to 16 bits."""
    interrupted = _run(_optimizer(kind, lazy=True), ".x.")
    storage.save(interrupted, order)
    resumed = _optimizer(kind, lazy=True, seed=1)
    storage.load(resumed, order)
    _assert_more_than_fp16(_weights(resumed))
    _assert_same(_state(resumed), _state(interrupted))
    _assert_same(_state(_run(resumed, "x..", first=3)), _state(_run(interrupted, "x..", first=3)))


# The model part of a file is that of plain FP32 Chainer.


@HALVES
def test_a_models_file_holds_the_masters_under_chainers_own_names(storage, kind):
    """Names and dtypes are those of the plain model, and each FP32 weight is the master."""
    optimizer = _run(_optimizer(kind), ".x.")
    storage.save(optimizer)
    file = storage.read("model")
    plain = _serialized(_optimizer("plain").target)
    assert {name: value.dtype for name, value in file.items()} == {name: value.dtype for name, value in plain.items()}
    weights = _weights(optimizer)
    _assert_more_than_fp16(weights)
    assert {weight.dtype for weight in weights.values()} == {np.dtype("float32")}
    _assert_same({name: file[name] for name in weights}, weights)


@HALVES
def test_a_plain_file_goes_into_a_live_model_in_place(storage, kind):
    """The masters take the exact FP32 values, the parameters the rounded ones, in the arrays that were there."""
    plain, live = _run(_optimizer("plain"), "..."), _run(_optimizer(kind, seed=1), ".x.")
    arrays = [param.array for param in live.target.params()]
    storage.save(plain)
    storage.load(live, ["model"])
    weights = _weights(live)
    _assert_more_than_fp16(weights)
    _assert_same(weights, _weights(plain))
    for (name, param), array in zip(live.target.namedparams(), arrays, strict=True):
        assert param.array is array
        np.testing.assert_array_equal(array, weights[name.lstrip("/")].astype(param.dtype), err_msg=name, strict=True)
    assert live.target.predictor.hidden.W.dtype.name == kind


# From every kind of run into every other.


def _restored(storage, source, destination):
    """Trains in the source, and loads its files into a fresh destination; returns both."""
    trained = _run(_optimizer(source), "...")
    storage.save(trained)
    restored = _optimizer(destination, seed=1)
    storage.load(restored)
    return trained, restored


@pytest.mark.parametrize("destination", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_every_kind_of_run_goes_on_from_every_other(storage, source, destination):
    """Weights, statistics, optimizer state and t arrive bitwise; only a loss scale that plain Chainer lacks is new."""
    without_scale = source == "plain" and destination != "plain"
    with _warns_once() if without_scale else contextlib.nullcontext():
        trained, restored = _restored(storage, source, destination)
    assert restored.t == 3
    before = _state(restored)
    _assert_same(_but_counters(before), _but_counters(_state(trained)))
    if without_scale:
        assert _counters(_serialized(restored)) == _counters(_serialized(_optimizer(destination)))
        assert restored.loss_scale == INITIAL_SCALE
    elif destination != "plain":
        assert _counters(_serialized(restored)) == _counters(_serialized(trained))
        assert restored.loss_scale == 2 * INITIAL_SCALE

    _run(restored, ".", first=3)
    assert restored.t == 4
    for name, weight in _weights(restored).items():
        assert np.isfinite(weight).all(), name
        assert (weight != before[f"weight/{name}"]).any(), name


@pytest.mark.parametrize("missing", COUNTERS[".xx"])
def test_a_file_that_lacks_one_counter_starts_the_loss_scale_afresh(storage, missing):
    """No mixture of old and new: all counters of the loss scale are those of a fresh one, and one warning says so."""
    trained = _run(_optimizer(), ".xx")
    storage.save(trained)
    arrays = storage.read("optimizer")
    del arrays[f"mixprec/{missing}"]
    storage.write("optimizer", arrays)

    restored = _run(_optimizer(seed=1), "..x")
    with _warns_once():
        storage.load(restored)
    _assert_same(_but_counters(_state(restored)), _but_counters(_state(trained)))
    assert _counters(_serialized(restored)) == _counters(_serialized(_optimizer()))


# Copies of a live optimizer.


@pytest.mark.parametrize(
    ("written", "here"),
    [("CorrectedMomentumSGD", "SGD"), ("MomentumSGD", "NesterovAG"), ("AdaBound", "Adam"), ("LARS", "MomentumSGD")],
)
def test_the_state_of_another_optimizer_is_refused_and_nothing_changes(storage, written, here):
    """The velocity of CorrectedMomentumSGD is not that of MomentumSGD, and SGD would drop it."""
    storage.save(_run(_optimizer(inner=written), "..."))
    optimizer = _run(_optimizer(inner=here), ".")
    before = _state(optimizer)
    with pytest.raises(ValueError, match=f"saved by {written}, and this optimizer is {here}, .* load the model alone"):
        storage.load(optimizer, ("optimizer",))
    _assert_same(_state(optimizer), before)


def test_one_rule_by_two_names_is_one_and_flags_of_adam_are_not_dropped(tmp_path):
    def adam(*flags):
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(**dict.fromkeys(flags, True)))
        return _run(optimizer.setup(mixprec.convert(model := L.Classifier(Net(False))) and model), "..")

    storage = Storage("npz", tmp_path)
    storage.save(adam("amsgrad"))
    storage.load(_optimizer(inner="AMSGrad"), ("optimizer",))
    with pytest.raises(ValueError, match="saved by AMSGrad, and this optimizer is Adam, "):
        storage.load(adam(), ("optimizer",))
    storage.save(adam())
    with pytest.raises(ValueError, match="saved by Adam, and this optimizer is AMSBound, "):
        storage.load(adam("amsgrad", "adabound"), ("optimizer",))


@pytest.mark.parametrize("name", [b"A\n\x1b[31m" * 2000, b"\xff\xfe", np.array("MomentumSGD")], ids=type)
def test_what_a_file_says_of_its_optimizer_is_quoted_in_one_short_line(tmp_path, name):
    storage = Storage("npz", tmp_path)
    storage.save(_run(_optimizer(), "."))
    arrays = storage.read("optimizer")
    arrays["mixprec/rule"] = np.frombuffer(name, np.uint8) if isinstance(name, bytes) else name
    np.savez(tmp_path / "optimizer.npz", **arrays)
    with pytest.raises(ValueError, match="this optimizer is Adam") as refused:
        storage.load(_optimizer(), ("optimizer",))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


def _pickled(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


@pytest.fixture(params=[copy.deepcopy, _pickled])
def duplicate(request):
    return request.param


@pytest.mark.parametrize(("duplicate", "before", "kind"), pairs([copy.deepcopy, _pickled], ["", *COUNTERS], KINDS[2:]))
def test_a_copy_goes_on_like_the_original_and_neither_touches_the_other(duplicate, before, kind):
    """Masters, optimizer state, scale and counters are copied; afterwards they are two runs."""
    after = ".x..x"
    original = _run(_optimizer(kind), before)
    copied = duplicate(original)
    start = _state(original)
    _assert_same(_state(copied), start)

    _run(copied, after, first=len(before))
    _assert_same(_state(original), start)

    end = _state(copied)
    _run(original, after, first=len(before))
    _assert_more_than_fp16(_weights(original))
    _assert_same(_state(original), end)
    _run(original, ".", first=len(before + after))
    _assert_same(_state(copied), end)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_copy_in_the_middle_of_a_step_knows_the_scale_of_its_gradients(duplicate, passes):
    """Between backward and update, and between two backward passes."""
    original = _run(_optimizer(), ".")
    ((x, t),) = _batches(".", 1)
    model = original.target
    model.cleargrads()
    original.scale_loss(model(x, t)).backward()
    copied = duplicate(original)
    for optimizer in (original, copied):
        for _ in range(passes - 1):
            optimizer.scale_loss(optimizer.target(x, t)).backward()
        optimizer.update()
    _assert_same(_state(copied), _state(original))


def test_a_copy_knows_the_gradients_of_the_last_step(duplicate):
    """Unscaled, as the original does; and it divides them once more if a step uses them once more."""
    original = _run(_optimizer(), ".")
    copied = duplicate(original)
    expected = dict(original.unscaled_gradients())
    _assert_same(dict(copied.unscaled_gradients()), expected)
    for optimizer in (original, copied):
        optimizer.update()
    _assert_same(_state(copied), _state(original))


def test_a_copy_with_lazy_parameters_loads_them_without_losing_bits(duplicate, storage):
    """Also if the model is loaded first."""
    interrupted = _run(_optimizer(), ".x.")
    storage.save(interrupted)
    copied = duplicate(_optimizer(lazy=True, seed=1))
    storage.load(copied, ORDERS[1])
    _assert_same(_state(copied), _state(interrupted))
