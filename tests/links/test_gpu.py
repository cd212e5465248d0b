"""Links on a CUDA device beside the same links on NumPy: on a GPU by ``pytest -m gpu``, and on the host's stand-ins."""

import chainer
import numpy as np
import pytest
from chainer import serializers

from mixprec import backends, functions
from mixprec.backends.cudnn import settings as cudnn
from tests.backends.primitive_cases import FLOAT16, FLOAT32, exact
from tests.links.nhwc_resnet import ResNet18
from tests.stand_ins import device_stand_in
from tests.stand_ins.cuda_sides import OnGpu, OnHost, both_sides
from tests.stand_ins.device_stand_in import DeviceArray

CLASSES = 10


class Host(OnHost):
    """Arrays of the stand-in device have the primitives of its CUDA backend."""

    device = "@numpy"
    send_link = staticmethod(device_stand_in.send)
    receive_link = staticmethod(lambda link: link.copy("copy"))

    def network(self, dtype):
        """Small enough for NumPy's float64: half of the blocks, 16x16 pixels, a batch of 4."""
        return ResNet18(CLASSES, dtype, blocks=1), (4, 3, 16, 16)


class Gpu(OnGpu):
    """The primitives are those that CuPy's arrays have."""

    device = "@cupy:0"

    def fresh(self):
        """Returns the primitives of the first GPU, those that links use."""
        return backends.cuda.primitives_of(0)

    def network(self, dtype):
        """ResNet-18 for small images."""
        return ResNet18(CLASSES, dtype), (8, 3, 32, 32)

    def send_link(self, link):
        """Moves a link to the GPU."""
        return link.to_device(self.device)

    def receive_link(self, link):
        """Returns a copy on NumPy."""
        return link.copy("copy").to_device("@numpy")


@pytest.fixture(scope="module")
def host():
    return Host()


@pytest.fixture(scope="module")
def gpu():
    device = Gpu()
    yield device
    device.close()


@pytest.fixture
def side(request, monkeypatch):
    """The host or the GPU, as the parameter says."""
    side = request.getfixturevalue(request.param)
    if not side.is_gpu:
        monkeypatch.setitem(backends._OTHERS, DeviceArray, side.cuda)
    side.need_cudnn()
    cudnn.configure(deterministic=True)
    return side


def network_and_batch(side, dtype, seed=0):
    """Returns a network on NumPy, the same whatever the dtype but for its rounding, images and labels."""
    np.random.seed(seed)
    network, shape = side.network(dtype)
    random = np.random.RandomState(seed + 1)
    return network, random.normal(size=shape).astype(np.float32), np.arange(shape[0], dtype=np.int32) % CLASSES


def loss_of(network, x, t):
    images = functions.to_nhwc(chainer.Variable(x, requires_grad=False), network.fc.W.dtype)
    return functions.softmax_cross_entropy(network(images), t)


def forward_and_backward(network, x, t, scale=1.0):
    """Returns the loss; gradients are in the parameters, times ``scale``."""
    loss = loss_of(network, x, t)
    network.cleargrads()
    loss.grad = loss.xp.full_like(loss.array, scale)
    loss.backward()
    return loss


def results(side, network, loss, scale=1.0):
    """Returns loss, gradients and running statistics by name, as float64 on NumPy."""
    network = side.receive_link(network) if side is not None else network
    found = {name: exact(param.grad) / scale for name, param in network.namedparams()}
    for name, link in network.namedlinks():
        found.update({f"{name}/{key}": exact(link.__dict__[key]) for key in link._persistent})
    return {**found, "loss": exact(loss)}


def distance(found, expected):
    """Relative, of all elements together."""
    return np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30)


@pytest.mark.slow
@both_sides
def test_float32_is_numpys(side):
    network, x, t = network_and_batch(side, "float32")
    expected = results(None, network, forward_and_backward(network, x, t).array)
    network, *_ = network_and_batch(side, "float32")
    network = side.send_link(network)
    loss = forward_and_backward(network, *side.send((x, t)))
    found = results(side, network, np.asarray(side.receive(loss.array)))
    assert found.keys() == expected.keys()
    assert abs(found["loss"] - expected["loss"]) <= 1e-5 * expected["loss"]
    for name, value in expected.items():
        # A batch normalization of few pixels, and ReLUs that open or close for less than 1e-6, make more of it.
        assert distance(found[name], value) <= 1e-3, name


@both_sides
def test_float16_is_as_near_to_float32_as_on_numpy(side):
    scale = 2.0**7
    truth, x, t = network_and_batch(side, "float32")
    on_numpy, *_ = network_and_batch(side, "float16")
    on_device, *_ = network_and_batch(side, "float16")
    exact_results = results(None, truth, forward_and_backward(truth, x, t).array)
    expected = results(None, on_numpy, forward_and_backward(on_numpy, x, t, scale).array, scale)
    on_device = side.send_link(on_device)
    loss = forward_and_backward(on_device, *side.send((x, t)), scale)
    found = results(side, on_device, np.asarray(side.receive(loss.array)), scale)
    errors = {name: distance(value, exact_results[name]) for name, value in found.items()}
    on_numpy = {name: distance(value, exact_results[name]) for name, value in expected.items()}
    assert errors["loss"] <= 0.02
    for name, error in errors.items():
        assert error <= 2 * on_numpy[name] + 2e-3, name


@both_sides
def test_a_step_again_has_the_same_bits(side):
    """In deterministic mode, also those of running statistics."""
    network, x, t = network_and_batch(side, "float16")
    before = side.send_link(network.copy("copy"))
    found = []
    for _ in range(2):
        network = before.copy("copy")
        loss = forward_and_backward(network, *side.send((x, t)))
        found.append(results(side, network, np.asarray(side.receive(loss.array))))
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


@both_sides
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_there_and_back(side, dtype):
    """Parameters and statistics stay what they are; filters lie in memory as (K, R, S, C) on either device."""
    network, x, t = network_and_batch(side, dtype)
    forward_and_backward(network, x, t)
    before = {name: exact(param.array) for name, param in network.namedparams()}
    statistics = {name: link.avg_var.copy() for name, link in network.namedlinks() if hasattr(link, "avg_var")}
    network.to_device(side.device)
    _assert_laid_out(network)
    loss_of(network, *map(chainer.get_device(side.device).send, (x, t)))
    network.to_device("@numpy")
    _assert_laid_out(network)
    for name, param in network.namedparams():
        assert type(param.array) is np.ndarray
        assert param.dtype in (dtype, FLOAT32)
        np.testing.assert_array_equal(exact(param.array), before[name], err_msg=name)
    moved = {name: link.avg_var for name, link in network.namedlinks() if name in statistics}
    assert all(not np.array_equal(moved[name], value) for name, value in statistics.items())
    assert np.isfinite(loss_of(network, x, t).array)


def _assert_laid_out(network):
    for name, param in network.namedparams():
        if param.ndim == 4:
            assert param.array.transpose(0, 2, 3, 1).flags.c_contiguous, name


@pytest.mark.slow
@both_sides
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_a_snapshot_of_the_device_loads_on_numpy(side, dtype, tmp_path):
    """It holds float32 in Chainer's order of axes."""
    network, x, t = network_and_batch(side, dtype)
    network = side.send_link(network)
    forward_and_backward(network, *side.send((x, t)))
    serializers.save_npz(tmp_path / "model.npz", network)
    with np.load(tmp_path / "model.npz") as file:
        assert {file[name].dtype for name in file} <= {np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.int32)}
        assert file["conv1/W"].shape == (64, 3, 7, 7)
    other, *_ = network_and_batch(side, dtype, seed=5)
    serializers.load_npz(tmp_path / "model.npz", other)
    on_numpy = side.receive_link(network)
    for (name, param), (_, expected) in zip(other.namedparams(), on_numpy.namedparams(), strict=True):
        np.testing.assert_array_equal(exact(param.array), exact(expected.array), err_msg=name)
    for (name, link), (_, expected) in zip(other.namedlinks(), on_numpy.namedlinks(), strict=True):
        for key in link._persistent:
            np.testing.assert_array_equal(link.__dict__[key], expected.__dict__[key], err_msg=f"{name}/{key}")


@both_sides
def test_a_step_reads_nothing_from_the_device(side):
    """On a GPU: it can be captured, which no read survives, and the graph gives the same bits as the step did."""
    network, x, t = network_and_batch(side, "float16")
    network = side.send_link(network)
    x, t = side.send((x, t))
    expected = side.receive(forward_and_backward(network, x, t).array)
    gradient = exact(side.receive_link(network).conv1.W.grad)
    if not side.is_gpu:
        before = DeviceArray.reads
        forward_and_backward(network, x, t)
        assert DeviceArray.reads == before
        return
    outputs = []
    launch, _ = side.graph_of(side.cuda, lambda: outputs.append(forward_and_backward(network, x, t)))
    launch()
    np.testing.assert_array_equal(side.receive(outputs[-1].array), expected)
    np.testing.assert_array_equal(exact(side.receive_link(network).conv1.W.grad), gradient)
