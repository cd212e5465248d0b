"""The random states of dropout: in snapshots, so that a resumed run is bitwise one that never stopped."""

import chainer
import numpy as np
import pytest
from chainer import optimizers, serializers, training

import mixprec
from mixprec import backends
from mixprec import functions as F
from mixprec import links as L
from mixprec.backends import dropout_state
from mixprec.training import snapshots
from tests.comparison import assert_same
from tests.stand_ins.device_stand_in import DeviceArray

CPU = chainer.get_device("@numpy")
X = np.ones(1000, np.float32)


class Net(chainer.Chain):
    """A few steps of it are another run if a single zero is elsewhere."""

    def __init__(self, dtype):
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(6, 40, dtype=dtype)
            self.out = L.Linear(40, 3, dtype=dtype)

    def forward(self, x, t):
        h = F.dropout(self.hidden(F.cast(x, self.out.W.dtype)), 0.3)
        return F.softmax_cross_entropy(self.out(F.dropout(h)), t)


@pytest.fixture(autouse=True)
def start_process(monkeypatch):
    """Returns what makes this process a new one, as far as dropout can tell, with other random numbers."""

    def start(seed=0):
        monkeypatch.setattr(dropout_state, "_states", {})
        monkeypatch.setattr(dropout_state, "_forgotten", set())
        np.random.seed(seed)

    start()
    return start


def _optimizer(dtype="float16"):
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.1), 64.0)
    return optimizer.setup(Net(dtype))


def _trainer(out, until, dtype="float16"):
    random = np.random.RandomState(1)
    data = random.normal(size=(40, 6)).astype(np.float32), random.randint(0, 3, 40).astype(np.int32)
    iterator = chainer.iterators.SerialIterator(chainer.datasets.TupleDataset(*data), 8, shuffle=False)
    updater = training.updaters.StandardUpdater(iterator, _optimizer(dtype))
    trainer = training.Trainer(updater, (until, "iteration"), out=str(out))
    trainer.extend(snapshots.extension(keep=9), trigger=(1, "iteration"))
    return trainer


def _arrays(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files if not name.endswith("elapsed_time")}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_trainer_resumed_in_another_process_is_bitwise_one_that_never_stopped(start_process, tmp_path, dtype):
    _trainer(tmp_path, 6, dtype).run()
    expected = _arrays(tmp_path / "snapshot_iter_6.npz")

    start_process(seed=7)
    trainer = _trainer(tmp_path / "resumed", 6, dtype)
    snapshots.load(tmp_path / "snapshot_iter_2.npz", trainer)
    trainer.run()
    found = _arrays(tmp_path / "resumed" / "snapshot_iter_6.npz")
    assert_same(found, expected)
    assert found["updater/optimizer:main/mixprec/dropout_state0"].tolist()[1] == 12  # two dropouts a step


@pytest.mark.parametrize("form", ["npz", "hdf5"])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_of_an_optimizer_has_the_state(start_process, form, fresh, tmp_path):
    """Also for one in whose process there have been dropouts; an array that a graph may use is written in place."""
    if form == "hdf5":
        pytest.importorskip("h5py", reason="h5py (extra test) is not installed")
    F.dropout(X)
    path = tmp_path / f"file.{form}"
    getattr(serializers, f"save_{form}")(path, _optimizer())
    expected = [F.dropout(X).array for _ in range(2)]
    if fresh:
        start_process(seed=7)
    else:
        F.dropout(X)
    (before,) = dropout_state._states.values() if dropout_state._states else [None]
    getattr(serializers, f"load_{form}")(path, _optimizer())
    (after,) = dropout_state._states.values()
    assert before is None or after is before
    for zeros in expected:
        np.testing.assert_array_equal(F.dropout(X).array, zeros)


@pytest.mark.parametrize("form", ["npz", "hdf5"])
def test_files_without_a_state(form, tmp_path):
    """Of a run without dropout, and of plain Chainer: what is there stays."""
    if form == "hdf5":
        pytest.importorskip("h5py", reason="h5py (extra test) is not installed")
    save, load = (getattr(serializers, f"{verb}_{form}") for verb in ("save", "load"))
    paths = tmp_path / f"file.{form}", tmp_path / f"plain.{form}"
    save(paths[0], _optimizer())
    plain = optimizers.MomentumSGD().setup(Net("float32"))
    plain.update(plain.target, np.ones((2, 6), np.float32), np.zeros(2, np.int32))
    save(paths[1], plain)
    state = dropout_state._states[backends.primitives_of(X)]
    before = state.copy()
    load(paths[0], _optimizer())
    with pytest.warns(UserWarning, match="no loss scale"):
        load(paths[1], _optimizer())
    np.testing.assert_array_equal(state, before)


def _saved(*devices):
    saved = serializers.DictionarySerializer()
    F.serialize_dropout(saved, devices)
    return saved.target


def test_what_does_not_exist_is_not_saved_and_nothing_is_drawn():
    before = np.random.get_state()[2]
    assert _saved(CPU) == {}
    assert np.random.get_state()[2] == before
    F.dropout(X)
    assert np.random.get_state()[2] != before
    (state,) = _saved(CPU).values()
    assert state.tolist()[1] == 1
    F.reset_dropout()
    assert _saved(CPU) == {}


def test_a_reset_state_draws_a_new_seed_into_the_same_array():
    np.random.seed(0)
    first = F.dropout(X).array
    state = dropout_state._states[backends.primitives_of(X)]
    F.reset_dropout()
    assert (F.dropout(X).array != first).any()
    np.random.seed(0)
    F.reset_dropout()
    np.testing.assert_array_equal(F.dropout(X).array, first)
    F.dropout(X)
    assert state[1] == 2  # a seed is drawn once
    assert dropout_state._states[backends.primitives_of(X)] is state


class OtherArray(DeviceArray):
    pass


class Other:
    """Another device, the stand-in for one."""

    def send(self, array):
        return array.view(OtherArray)


def test_states_of_several_devices_are_known_by_their_order(start_process, monkeypatch):
    monkeypatch.setitem(backends._OTHERS, OtherArray, type(backends.primitives_of(X))())
    there = Other().send(X.copy())
    F.dropout(X)
    F.dropout(there), F.dropout(there)
    saved = _saved(CPU, Other())
    assert {name: state.tolist()[1] for name, state in saved.items()} == {"dropout_state0": 1, "dropout_state1": 2}
    assert saved["dropout_state0"][0] != saved["dropout_state1"][0]
    expected = F.dropout(there).array, F.dropout(X).array
    F.reset_dropout()
    F.dropout(there)
    assert _saved(CPU, Other()).keys() == {"dropout_state1"}

    start_process(seed=7)
    F.serialize_dropout(serializers.NpzDeserializer(saved), [Other(), CPU])  # the run has changed places
    np.testing.assert_array_equal(F.dropout(X).array, expected[0])
    np.testing.assert_array_equal(F.dropout(there).array, expected[1])


@pytest.mark.gpu
def test_the_state_of_a_gpu_goes_into_a_file_and_back_in_place(start_process):
    import cupy

    device = chainer.get_device("@cupy:0")
    x = cupy.asarray(X)
    F.dropout(x)
    saved = _saved(device)
    expected = F.dropout(x).array
    (state,) = dropout_state._states.values()
    F.serialize_dropout(serializers.NpzDeserializer(saved), [device])
    np.testing.assert_array_equal(cupy.asnumpy(F.dropout(x).array), cupy.asnumpy(expected))
    assert next(iter(dropout_state._states.values())) is state

    start_process(seed=7)
    F.serialize_dropout(serializers.NpzDeserializer(saved), [CPU])
    np.testing.assert_array_equal(F.dropout(X).array, cupy.asnumpy(expected))
