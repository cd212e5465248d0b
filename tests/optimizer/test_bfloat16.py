"""Parameters in bfloat16: masters, losses, messages, and the update on a device beside that on NumPy."""

import chainer
import ml_dtypes
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from mixprec import functions as F
from mixprec import links as L
from mixprec.optimizer import step as batched_step
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_stand_in import DeviceArray
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.update_pair import assert_same_bits, link_of

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BATCHED = pytest.mark.parametrize("batched", [True, False])


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(4, 8, dtype="bfloat16")
            self.bn = L.BatchNormalization(8)
            self.second = L.Linear(8, 3, dtype="bfloat16")

    def forward(self, x, t):
        h = self.bn(self.first(F.cast(x, "bfloat16")), relu=True)
        return F.softmax_cross_entropy(self.second(h), t)


def _batch(seed=0):
    random = np.random.RandomState(seed)
    return random.normal(size=(8, 4)).astype(np.float32), random.randint(0, 3, 8).astype(np.int32)


def _optimizer(model, scale=2.0**8, inner=None, batched=True):
    return mixprec.MixedPrecisionOptimizer(inner or optimizers.SGD(lr=0.125), scale, batched=batched).setup(model)


@BATCHED
def test_steps_too_small_for_bfloat16_add_up_in_the_master(batched):
    """Each is a 64th of the distance to the next number; a parameter without a master would stay where it is."""
    optimizer = _optimizer(link_of({"w": np.ones(5, BFLOAT16)}), None, optimizers.SGD(lr=1.0), batched)
    array = optimizer.target.w.array
    for step in range(1, 65):
        optimizer.target.cleargrads()
        optimizer.target.w.grad = np.full(5, -(2.0**-13), BFLOAT16)
        optimizer.update()
        np.testing.assert_array_equal(optimizer.master(optimizer.target.w).array, np.float32(1 + step * 2.0**-13))
    np.testing.assert_array_equal(array, np.full(5, 1 + 2.0**-7, BFLOAT16))
    assert optimizer.target.w.array is array


@BATCHED
@pytest.mark.parametrize("size", [6, 8195])
def test_gradients_are_unscaled_in_float32(size, batched):
    """Below 2^-126 bfloat16 loses bits that float32 still has; above 2^127 neither has room for more."""
    gradient = np.full(size, 1.0078125 * 2.0**-126, BFLOAT16)
    optimizer = _optimizer(link_of({"w": np.zeros(size, BFLOAT16)}), 64.0, optimizers.SGD(lr=1.0), batched)
    for factor, expected in ((64.0, -1.0078125 * 2.0**-132), (0.5, -1.0078125 * 2.0**-132)):
        optimizer.target.w.grad = gradient
        optimizer.target.w._loss_scale = factor
        optimizer.update()
        np.testing.assert_array_equal(optimizer.master(optimizer.target.w).array, np.float32(expected))
        gradient = np.full(size, 2.0**127, BFLOAT16)
    assert optimizer.skipped == 1


@BATCHED
def test_a_loss_in_bfloat16_is_scaled_in_float32(batched):
    """Unscaled, the gradient at 2^24 is that without a scale."""
    pair = [_optimizer(L.Linear(4, 1, dtype="bfloat16"), scale, batched=batched) for scale in (None, 2.0**24)]
    x = chainer.Variable(_batch()[0][:1].astype(BFLOAT16))
    for optimizer in pair:
        optimizer.target.W.array[...] = [[1, -2, 3, 4]]
        loss = chainer.functions.reshape(optimizer.target(x), ())
        scaled = optimizer.scale_loss(loss)
        assert loss.dtype == BFLOAT16
        optimizer.target.cleargrads()
        scaled.backward()
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled.array, loss.array.astype(np.float32) * 2**24)
    assert optimizer.target.W.grad.dtype == BFLOAT16
    unscaled, expected = (dict(optimizer.unscaled_gradients()) for optimizer in pair)
    assert {gradient.dtype for gradient in unscaled.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(unscaled["/W"], expected["/W"], strict=True)
    np.testing.assert_array_equal(unscaled["/W"], x.array.astype(np.float32))


def test_a_run_that_diverged_names_layer_and_gradients_in_bfloat16():
    optimizer = _optimizer(Net(), mixprec.DynamicLossScale(patience=1))
    optimizer.target.second.W.array[1, 2] = np.nan
    with pytest.raises(mixprec.LossScaleExhausted) as error:
        optimizer.update(optimizer.target, *_batch())
    assert "not finite: /second (Linear, 0 inf, 8 NaN of 24); its parameters /second/W are" in str(error.value)
    assert "/first/W (0 inf, 32 NaN of 32)" in str(error.value)


@pytest.fixture
def launcher(monkeypatch):
    launcher = HostLauncher()
    monkeypatch.setattr(batched_step, "launcher_of", lambda array: launcher if isinstance(array, DeviceArray) else None)
    return launcher


def _copies(arrays):
    return {name: array.copy() for name, array in arrays.items()}


def _same(found, expected, where):
    """CuPy's kernels for Chainer's own updates round a product and a sum once, NumPy rounds twice."""
    eps = {"float32": 2.0**-21, "float16": 2.0**-10, "bfloat16": 2.0**-7}[found.dtype.name]
    found, expected = (np.asarray(array, np.float64) for array in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=eps, atol=2.0**-21 * np.abs(expected).max(), err_msg=where)


def _beside_the_host(send, place, receive, inner, batched, same=assert_same_bits):
    """Runs on a device and on the host: with dtypes mixed, overflows and writes into a parameter."""
    shapes = {"w": ((3, 5), BFLOAT16), "b": ((7,), BFLOAT16), "large": ((8195,), BFLOAT16)}
    shapes |= {"half": ((5,), np.float16), "single": ((4,), np.float32)}
    random = np.random.RandomState(0)
    arrays = {name: random.normal(size=shape).astype(dtype) for name, (shape, dtype) in shapes.items()}
    models = link_of(arrays), send(link_of(_copies(arrays)))
    host, device = (_optimizer(model, "dynamic", inner(), batched) for model in models)
    for optimizer in (host, device):
        optimizer.add_hook(optimizer_hooks.WeightDecay(0.01))
    for step in range(5):
        gradients = {name: random.normal(size=shape).astype(dtype) for name, (shape, dtype) in shapes.items()}
        if step in (0, 3):
            gradients["b"][2] = np.nan
        for optimizer, to in ((host, np.array), (device, place)):
            for name, param in optimizer.target.namedparams():
                param.grad = to(gradients[name[1:]])
            if step in (2, 3):
                optimizer.target.w.array[step - 1] = 0.3 * step
            optimizer.update()
    assert device.t == host.t == 3
    for name, param in device.target.namedparams():
        expected = getattr(host.target, name[1:])
        same(receive(param.array), expected.array, name)
        same(receive(device.master(param).array), host.master(expected).array, f"{name}, master")


@pytest.mark.parametrize("inner", [lambda: optimizers.MomentumSGD(lr=0.1), lambda: optimizers.Adam()])
@BATCHED
def test_on_a_device_it_is_the_run_on_the_host(inner, batched, launcher):
    _beside_the_host(device_stand_in.send, device_stand_in.array, np.asarray, inner, batched)
    assert bool(launcher.launches) == batched


@pytest.mark.gpu
@BATCHED
def test_on_a_gpu_it_is_the_run_on_the_host(batched):
    import cupy

    def send(link):
        link.to_device("@cupy:0")
        return link

    same = assert_same_bits if batched else _same
    _beside_the_host(send, cupy.asarray, cupy.asnumpy, lambda: optimizers.MomentumSGD(lr=0.1), batched, same)
