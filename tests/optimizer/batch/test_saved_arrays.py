"""Copies of many arrays by one launch, and the statistics of a model that are saved so."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from hypothesis import given, settings
from hypothesis import strategies as st

import mixprec
from mixprec.optimizer import running_statistics
from mixprec.optimizer.batch.saved_arrays import SavedArrays, overwritten
from tests.cases import tries
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_runs import CHAINERS
from tests.stand_ins.device_stand_in import DeviceArray
from tests.stand_ins.host_launch import HostLauncher


@pytest.fixture(scope="module")
def launcher():
    return HostLauncher()


def test_arrays_that_share_memory_are_brought_back():
    array = np.arange(6.0).reshape(2, 3)
    before = array.copy()
    with overwritten([(array, np.zeros((2, 3))), (array.T, np.ones((3, 2)))]):
        assert (array == 1).all()
    assert np.array_equal(array, before)


DTYPES = (np.float32, np.float16, np.int64, np.int8, np.bool_)


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 40_000), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=tries(30))
def test_all_arrays_are_copied_and_nothing_else(launcher, kinds, seed):
    """Of any dtype, size and alignment; sizes of several blocks among them."""
    random = np.random.RandomState(seed)
    arrays = []
    for dtype, size, offset in kinds:
        memory = random.randint(0, 2, size + offset).astype(dtype)
        arrays.append(memory[offset:].view(DeviceArray))
    saved = SavedArrays(arrays, launcher)
    addresses = [copy.ctypes.data for copy in saved.copies]
    for _ in range(2):
        expected = [np.array(array) for array in arrays]
        launcher.launches.clear()
        saved.save()
        assert len(launcher.launches) == (1 if any(array.size for array in arrays) else 0)
        for copy, before, array in zip(saved.copies, expected, arrays, strict=True):
            assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(copy, before)
            np.testing.assert_array_equal(array, before)
            array[...] = ~array if array.dtype == bool else array + 1
        assert [copy.ctypes.data for copy in saved.copies] == addresses


def test_other_arrays_are_told():
    class Nowhere(HostLauncher):
        def __init__(self):
            self.uploads = []

        def compile(self, source, names):
            return dict.fromkeys(names)

    arrays = [device_stand_in.array(np.ones(3)), device_stand_in.array(np.ones(4))]
    saved = SavedArrays(arrays, Nowhere())
    assert saved.are_of(list(arrays))
    assert not saved.are_of(arrays[::-1])
    assert not saved.are_of(arrays[:1])
    assert not saved.are_of([arrays[0], arrays[1].copy()])


# --- statistics


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.BatchNormalization(4)
            self.second = L.BatchNormalization(4)
            self.fc = L.Linear(4, 2)
        self.second.avg_mean = self.first.avg_mean  # shared

    def forward(self, x):
        return self.fc(self.second(F.relu(self.first(x))))


@pytest.fixture
def optimizer(launcher, monkeypatch):
    monkeypatch.setattr(running_statistics, "launcher_of", lambda array: launcher)
    model = Net()
    mixprec.convert(model, **CHAINERS)
    device_stand_in.send(model)
    model.second.avg_mean = model.first.avg_mean
    return mixprec.MixedPrecisionOptimizer(optimizers.SGD(0.1), 8, batched=False).setup(model)


def _batch(poisoned=False):
    x = np.random.RandomState(0).normal(size=(8, 4)).astype(np.float32)
    if poisoned:
        x[0, 0] = np.inf
    return device_stand_in.array(x)


def _statistics(model):
    names = [(link, name) for link in (model.first, model.second) for name in ("avg_mean", "avg_var")]
    return [np.array(link.__dict__[name]) for link, name in names]


def test_a_step_saves_in_one_launch_and_comes_back(optimizer, launcher):
    """Promise 2: running statistics of a skipped step, whatever link shares them."""
    model = optimizer.target
    for poisoned in (False, True, False):
        before = _statistics(model)
        launcher.launches.clear()
        optimizer.update(lambda x: F.sum(F.square(model(x))), _batch(poisoned))
        assert launcher.launches == [3]  # avg_mean once, and two avg_var
        assert optimizer.last_step_skipped == poisoned
        same = {np.array_equal(*pair) for pair in zip(before, _statistics(model), strict=True)}
        assert same == {poisoned}


def test_what_was_saved_before_in_the_step_stays(optimizer, launcher):
    """A forward pass before update() belongs to the step: its links are saved already, the others are not."""
    model = optimizer.target
    before = _statistics(model)
    model.first(_batch())
    launcher.launches.clear()
    optimizer.update(lambda x: F.sum(F.square(model(x))), _batch(True))
    assert optimizer.last_step_skipped
    for found, expected in zip(_statistics(model), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_arrays_that_are_replaced_are_saved_from_then_on(optimizer, launcher):
    model = optimizer.target
    optimizer.update(lambda x: F.sum(F.square(model(x))), _batch())
    model.first.avg_var = device_stand_in.array(np.full(4, 7, np.float32))
    optimizer.update(lambda x: F.sum(F.square(model(x))), _batch(True))
    np.testing.assert_array_equal(model.first.avg_var, np.full(4, 7))
