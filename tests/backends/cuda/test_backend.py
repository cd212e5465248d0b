"""The CUDA backend as a whole: complete, one for each device, and there without cuDNN."""

import inspect
import logging

import numpy as np
import pytest

from mixprec.backends import cpu, cuda
from mixprec.backends.geometry import BatchNorm, Convolution, Pooling
from mixprec.backends.primitives import NAMES, Primitives
from mixprec.base.cudnn_library import CudnnMissing
from tests.backends.primitive_cases import FLOAT16, arrays, convolved_and_normalized, exact
from tests.stand_ins.cuda_on_host import HostCuda, receive, send


@pytest.fixture
def devices(monkeypatch):
    """Stand-ins for what would look for a device; the numbers that were asked for."""
    asked = []
    monkeypatch.setattr(cuda, "_by_device", {})
    monkeypatch.setattr(cuda, "CupyLauncher", lambda number: asked.append(number) or object())
    monkeypatch.setattr(cuda, "CudnnContext", lambda number: ("cudnn", number))
    monkeypatch.setattr(cuda, "MatrixContext", lambda number: ("matrices", number))
    return asked


def test_each_primitive_has_the_signature_of_the_contract():
    assert len(NAMES) >= 30
    for name in NAMES:
        expected = inspect.signature(getattr(Primitives, name))
        for backend in (cuda.Cuda, cpu.Cpu):
            assert inspect.signature(getattr(backend, name)) == expected, (backend, name)


def test_a_device_has_one_set_of_primitives(devices):
    first, second = cuda.primitives_of(0), cuda.primitives_of(1)
    assert cuda.primitives_of(0) is first is not second
    assert (second.cudnn, second.matrices) == (("cudnn", 1), ("matrices", 1))
    assert devices == [0, 1]


def test_without_cudnn_a_device_still_has_primitives(devices, monkeypatch):
    def missing(number):
        raise CudnnMissing("nvidia-cudnn-frontend is missing: pip install it")

    monkeypatch.setattr(cuda, "CudnnContext", missing)
    with pytest.raises(CudnnMissing, match="is computed by cuDNN: nvidia-cudnn-frontend is missing: pip install it"):
        cuda.primitives_of(0).cudnn.plan("linear")


@pytest.mark.parametrize(("dtype", "launches"), [("float16", 26 - 2), ("float32", 26)])
def test_a_small_network_is_numpys(dtype, launches, caplog):
    """Stem, block with a residual connection, head, loss, and all gradients: the same calls on both backends.

    Nothing is computed in a slow way, and 26 launches do it all, two of them for the filter of the stem. In float16 its
    images come as squares, in the launch that casts them, and both convolutions take sums, which spares two.
    """
    caplog.set_level(logging.WARNING, "mixprec")
    device = HostCuda()
    rng = np.random.default_rng(0)
    dtype = np.dtype(dtype)
    images = arrays(rng, (4, 3, 16, 16), np.float32)
    weights = [
        arrays(rng, shape, dtype, np.prod(shape[1:]) ** -0.5) for shape in ((16, 7, 7, 3), (16, 3, 3, 16), (10, 16))
    ]
    b = arrays(rng, 10, dtype)
    scales = [np.ones((2, 16), np.float32) * [[1], [0.1]] for _ in range(2)]
    scales = [tuple(array.astype(np.float32)) for array in scales]
    labels = rng.integers(0, 10, 4).astype(np.int32)

    expected = step(cpu.PRIMITIVES, images, weights, b, scales, labels)
    before = len(device.launcher.launches)
    with device.counting() as counted:
        found = step(
            device, send(images), [send(w) for w in weights], send(b), [send(pair) for pair in scales], send(labels)
        )
    assert len(device.launcher.launches) - before == counted.kernels
    assert counted.kernels + len(counted.plans) == launches
    assert not caplog.records
    for name, value in expected.items():
        scale = np.abs(exact(value)).max()
        tolerance = 2e-2 if dtype == FLOAT16 else 1e-4
        np.testing.assert_allclose(exact(receive(found[name])), exact(value), atol=tolerance * scale, err_msg=name)


def step(p, images, weights, b, scales, labels):
    """Returns loss and gradients."""
    stem, three, pooling = Convolution((2, 2), (3, 3)), Convolution(pad=(1, 1)), Pooling((3, 3), (2, 2), (1, 1))
    first, second, head = weights
    relu = BatchNorm(relu=True)
    form = p.conv_form((4, 16, 16, 3), first.shape, first.dtype, stem)
    if form is stem:
        x = p.to_nhwc(images, first.dtype, 4)
    else:
        x = p.conv_images(images, form, first.dtype, channels_first=True)
    z1, y1, saved1 = convolved_and_normalized(p, x, first, form, *scales[0], None, relu)
    pooled, where = p.max_pool(y1, pooling)
    z2, y2, saved2 = convolved_and_normalized(p, pooled, second, three, *scales[1], None, relu, add=pooled)
    features = p.global_average_pool(y2)
    logits = p.linear(features, head, b)
    _, log_z, (loss, factor, _) = p.softmax_cross_entropy(logits, labels, divisor=0)

    dlogits = p.softmax_cross_entropy_backward(factor, logits, labels, log_z)
    db, dhead = p.bias_grad(dlogits, b.dtype), p.linear_wgrad(features, dlogits)
    dy2 = p.global_average_pool_backward(p.linear_dgrad(dlogits, head), y2.shape)
    dz2, dgamma2, dbeta2, dadd = p.batch_norm_backward(dy2, z2, *scales[1], saved2, relu, add=True)
    dsecond = p.conv_wgrad(pooled, dz2, three, second.shape)
    dpooled = p.conv_dgrad(dz2, second, three, pooled.shape) + dadd
    dy1 = p.max_pool_backward(dpooled, where, pooling, y1.shape)
    dz1, dgamma1, dbeta1, _ = p.batch_norm_backward(dy1, z1, *scales[0], saved1, relu)
    dfirst = p.conv_wgrad(x, dz1, form, first.shape)
    gradients = {"first": dfirst, "second": dsecond, "head": dhead, "b": db}
    return {"loss": loss, "gamma1": dgamma1, "beta1": dbeta1, "gamma2": dgamma2, "beta2": dbeta2, **gradients}
