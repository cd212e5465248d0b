"""Chainer's own updaters for several devices around the wrapper: half a batch on each of two, here both the CPU."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, training

import mixprec
from mixprec.optimizer import UnscaledBackward

X = np.random.RandomState(0).normal(size=(32, 4)).astype(np.float32)
T = np.arange(32, dtype=np.int32) % 3
DEVICES = {"main": "@numpy", "second": "@numpy"}


class Network(chainer.Chain):
    """No ``Sequential``: its ``addgrads`` takes links for functions, also in plain Chainer."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.norm, self.last = L.Linear(4, 8), L.BatchNormalization(8), L.Linear(8, 3)

    def forward(self, x):
        return self.last(F.relu(self.norm(self.first(x))))


def _built(compute=None, loss_scale=None, images=X, updater=training.updaters.ParallelUpdater):
    """An updater, and its optimizer: around plain Chainer's model if ``compute`` is ``None``."""
    np.random.seed(0)
    model = L.Classifier(Network())
    optimizer = optimizers.MomentumSGD(lr=0.1)
    if compute is not None:
        mixprec.convert(model, compute=compute)
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, loss_scale)
    optimizer.setup(model)
    iterator = chainer.iterators.SerialIterator(chainer.datasets.TupleDataset(images, T), 8, shuffle=False)
    return updater(iterator, optimizer, devices=DEVICES, loss_scale=loss_scale), optimizer


def _arrays(optimizer):
    """Masters, or plain parameters, and the running statistics."""
    norm = optimizer.target.predictor.norm
    master = getattr(optimizer, "master", lambda param: param)
    found = {name: master(param).array for name, param in optimizer.target.namedparams()}
    return {name: array.copy() for name, array in {**found, "mean": norm.avg_mean, "var": norm.avg_var}.items()}


@pytest.mark.parametrize(
    ("compute", "loss_scale", "tolerance"), [("float32", None, 1e-6), ("float16", 1024, 5e-3), ("bfloat16", None, 4e-2)]
)
def test_it_trains_as_plain_chainer_does(compute, loss_scale, tolerance):
    """The gradient is the sum of the means of both halves; the replica gets the main model's weights and statistics."""
    updater, optimizer = _built(compute, loss_scale)
    plain, reference = _built()
    for _ in range(4):
        updater.update()
        plain.update()
    found, expected = _arrays(optimizer), _arrays(reference)
    assert optimizer.t == 4
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance, err_msg=name)
    main, replica = (dict(model.namedparams()) for model in updater._models.values())
    for name, param in main.items():
        assert param.dtype == replica[name].dtype
        np.testing.assert_array_equal(param.array, replica[name].array)


@pytest.mark.parametrize("place", [8, 9])
def test_an_overflow_in_one_half_skips_the_step(place):
    """In that of the main model, and in that of the replica."""
    images = X.copy()
    images[place, 0] = np.inf
    updater, optimizer = _built("float16", 1024, images)
    updater.update()
    before = _arrays(optimizer)
    with np.errstate(invalid="ignore"):
        updater.update()
    assert optimizer.last_step_skipped
    for name, array in _arrays(optimizer).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    for model in updater._models.values():
        np.testing.assert_array_equal(model.predictor.norm.avg_mean, before["mean"])
    updater.update()
    assert (optimizer.t, optimizer.skipped) == (2, 1)


def test_a_dynamic_scale():
    """Raises, and says what does it: this updater takes one number, once."""
    updater, optimizer = _built("float16")
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD()).setup(optimizer.target)
    updater = training.updaters.ParallelUpdater(updater.get_iterator("main"), optimizer, devices=DEVICES)
    with pytest.raises(UnscaledBackward, match=r"ParallelUpdater: pass one static loss_scale to it .* or use mpiexec"):
        updater.update()


@pytest.mark.parametrize("loss_scale", ["dynamic", None])
def test_an_updater_with_processes(loss_scale):
    """Raises when it is made, and says what to use: in a step its processes would wait for ever."""
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), loss_scale).setup(L.Linear(2, 2))
    updater = training.updaters.MultiprocessParallelUpdater
    with pytest.raises(ValueError, match=r"start a process for each GPU by mpiexec, .*communicator=communicator\)"):
        updater([None, None], optimizer, devices=(0, 1))
    if not updater.available():
        with pytest.raises(Exception, match="NCCL is not enabled"):  # for a plain optimizer it is as it was
            updater([None, None], optimizers.Adam(), devices=(0, 1))
