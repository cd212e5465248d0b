"""On a CUDA device: the same training as on NumPy. Run by ``pytest -m gpu``."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.backends.cudnn import settings as cudnn
from models import MODELS

pytestmark = pytest.mark.gpu

EPS16 = 2.0**-11


def _train(device, compute, steps=4, poison_at=None):
    np.random.seed(0)
    model = L.Classifier(MODELS["resnet8"](10))
    mixprec.convert(model, compute=compute)
    model.to_device(device)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.CorrectedMomentumSGD(lr=0.01)).setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(1e-4))
    random = np.random.RandomState(1)
    losses = []
    for step in range(steps):
        x = random.normal(size=(16, 3, 16, 16)).astype(np.float32)
        if step == poison_at:
            x[0, 0, 0, 0] = np.inf
        t = random.randint(0, 10, 16).astype(np.int32)
        optimizer.update(model, device.send(x), device.send(t))
        losses.append(float(model.loss.array))
    return optimizer, losses


@pytest.mark.parametrize(("compute", "tolerance"), [("float16", 64 * EPS16), ("float32", 1e-4)])
def test_losses_are_those_of_numpy(compute, tolerance):
    _, expected = _train(chainer.get_device("@numpy"), compute)
    optimizer, found = _train(chainer.get_device("@cupy:0"), compute)
    np.testing.assert_allclose(found, expected, rtol=tolerance)
    for param in optimizer.target.params():
        assert param.xp.__name__ == optimizer.master(param).xp.__name__ == "cupy"
        assert optimizer.master(param).dtype == np.float32


def test_a_snapshot_of_the_device_loads_on_the_cpu(tmp_path):
    device, _ = _train(chainer.get_device("@cupy:0"), "float16", steps=2)
    serializers.save_npz(tmp_path / "model.npz", device.target)
    serializers.save_npz(tmp_path / "optimizer.npz", device)
    cpu, _ = _train(chainer.get_device("@numpy"), "float16", steps=1)
    serializers.load_npz(tmp_path / "model.npz", cpu.target)  # the masters
    serializers.load_npz(tmp_path / "optimizer.npz", cpu)
    for (name, expected), (_, found) in zip(device.target.namedparams(), cpu.target.namedparams(), strict=True):
        if expected.dtype == np.float16:
            np.testing.assert_array_equal(cpu.master(found).array, device.master(expected).array.get(), err_msg=name)


@pytest.mark.parametrize("rule", ["SGD", "CorrectedMomentumSGD", "RMSprop", "AdaDelta"])
def test_an_update_reads_nothing_from_the_device(rule):
    """Promise 10, on a device: in a stream capture, which no read and no synchronization survives."""
    cudnn.configure(deterministic=True)
    device = chainer.get_device("@cupy:0")
    device.use()
    np.random.seed(0)
    model = L.Classifier(MODELS["resnet8"](10))
    mixprec.convert(model)
    model.to_device(device)
    scale = mixprec.DynamicLossScale(init=2.0**8)
    optimizer = mixprec.MixedPrecisionOptimizer(getattr(optimizers, rule)(), scale).setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(1e-4))
    x = device.send(np.random.RandomState(1).normal(size=(16, 3, 16, 16)).astype(np.float32))
    t = device.send(np.arange(16, dtype=np.int32) % 10)
    step = mixprec.capture(optimizer, required=True)
    for _ in range(7):
        step(x, t)
    assert step.replays == 2
    assert optimizer.t == 7
    assert optimizer.skipped == 0


@pytest.mark.parametrize("rule", ["CorrectedMomentumSGD", "Adam", "MSVAG"])
def test_a_skipped_step_changes_nothing_on_the_device(rule):
    """Promise 2, on a device: masters, state, statistics and counters, also at the first step."""
    device = chainer.get_device("@cupy:0")

    def run(poisoned):
        device.use()
        np.random.seed(0)
        model = L.Classifier(MODELS["resnet8"](10))
        mixprec.convert(model)
        model.to_device(device)
        scale = mixprec.DynamicLossScale(init=2.0**8, floor=2.0**8)
        optimizer = mixprec.MixedPrecisionOptimizer(getattr(optimizers, rule)(), scale).setup(model)
        random = np.random.RandomState(1)
        x = random.normal(size=(16, 3, 16, 16)).astype(np.float32)
        t = device.send(np.arange(16, dtype=np.int32) % 10)
        for step in range(3):
            if step in poisoned:
                optimizer.update(model, device.send(np.full_like(x, np.inf)), t)
                assert optimizer.last_step_skipped
            optimizer.update(model, device.send(x), t)
        saved = serializers.DictionarySerializer()
        optimizer.serialize(saved["optimizer"])
        model.serialize(saved["model"])
        return optimizer, saved.target

    optimizer, found = run({0, 2})
    _, expected = run(set())
    assert (optimizer.skipped, optimizer.t) == (2, 3)
    for name, array in expected.items():
        if "mixprec" not in name:
            # im2col and its sums may take another order from run to run
            np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


def test_to_device_in_the_middle_of_a_run_takes_masters_and_scale_along():
    """Promise 7: there and back; the counters stay, and training goes on."""
    optimizer, _ = _train(chainer.get_device("@cupy:0"), "float16", steps=3, poison_at=1)
    before = {name: chainer.backends.cuda.to_cpu(optimizer.master(p).array) for name, p in _params(optimizer)}
    optimizer.target.to_device("@numpy")
    for name, param in _params(optimizer):
        np.testing.assert_array_equal(optimizer.master(param).array, before[name], err_msg=name)
    x = np.random.RandomState(2).normal(size=(16, 3, 16, 16)).astype(np.float32)
    optimizer.update(optimizer.target, x, np.arange(16, dtype=np.int32) % 10)
    assert (optimizer.skipped, optimizer.t, optimizer.loss_scale) == (1, 3, 2.0**15)


def _params(optimizer):
    return list(optimizer.target.namedparams())
