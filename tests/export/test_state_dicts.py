"""mixprec.export.torchvision and load_torchvision: logits are PyTorch's, arrays come back bit for bit."""

import doctest

import chainer
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.export import WeightsError, load_torchvision, state_dicts, torch_names, torchvision
from mixprec.export.matching import contents
from models import MODELS
from tests.comparison import assert_same_bits

REASON = "torch is not installed: it comes with Python 3.11 only"
ARCHS = ["resnet18", *(pytest.param(arch, marks=pytest.mark.slow) for arch in ("resnet50", "resnext50_32x4d"))]


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch", reason=REASON)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


@pytest.fixture
def twins(torch):
    from tests.export import torch_twins

    return torch_twins


def assert_agree(found, expected):
    """To 1e-5 of the logits' size."""
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def small(classes=5):
    """A ResNet-8 whose arrays all differ, also the counts."""
    network = MODELS["resnet8"](classes)
    random = np.random.default_rng(3)
    for link in network.links():
        if isinstance(link, L.BatchNormalization):
            link.N = int(random.integers(100))
            for array in (link.gamma.array, link.beta.array, link.avg_mean, link.avg_var):
                array[...] = random.uniform(0.5, 1.5, array.shape)
    return network


# Logits


@pytest.mark.parametrize("arch", ARCHS)
def test_logits_are_those_of_pytorch_in_both_directions(twins, torch, arch):
    """Random weights and random running statistics."""
    x = twins.images()
    there, here = twins.twin(arch, 7), MODELS[arch](7)
    load_torchvision(here, there.state_dict())
    expected = twins.logits(there, x)
    assert_agree(twins.logits(here, x), expected)

    other = twins.twin(arch, 7, seed=1)
    assert not np.allclose(twins.logits(other, x), expected, rtol=0.1)
    other.load_state_dict({name: torch.from_numpy(array) for name, array in torchvision(here).items()})
    np.testing.assert_array_equal(twins.logits(other, x), expected)


# The way back


def test_arrays_are_copies_in_float32_and_counts_are_int64():
    network = small()
    state = torchvision(network)
    assert {array.dtype for name, array in state.items() if not name.endswith("tracked")} == {np.dtype(np.float32)}
    assert {array.dtype for name, array in state.items() if name.endswith("tracked")} == {np.dtype(np.int64)}
    before = network.fc.W.array.copy()
    state["fc.weight"][...] = 0
    np.testing.assert_array_equal(network.fc.W.array, before)


def test_counts_may_be_missing():
    """PyTorch before 0.4.1 had none, and a normalization may be told not to count."""
    network, other = small(), small()
    other.bn1.N = 5
    load_torchvision(other, {k: v for k, v in torchvision(network).items() if "num_batches" not in k})
    assert other.bn1.N == 5
    np.testing.assert_array_equal(other.bn1.avg_var, network.bn1.avg_var)


@pytest.mark.parametrize(("layout", "masters"), [("nhwc", True), ("nchw", False)])
def test_a_converted_model_gives_and_takes_the_names_of_the_plain_one(layout, masters):
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    model, other = L.Classifier(small()), L.Classifier(MODELS["resnet8"](5))
    plain = torchvision(model)
    for each in (model, other):
        if masters:
            mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(each)
        mixprec.convert(each, x, layout=layout)
    rounded = {
        name: array.astype(np.float16).astype(np.float32) if array.ndim > 1 and not masters else array
        for name, array in plain.items()
    }
    found = torchvision(model)
    if not masters:  # biases of linear layers are in FP16, too
        rounded["fc.bias"] = rounded["fc.bias"].astype(np.float16).astype(np.float32)
    assert_same_bits(found, rounded)
    load_torchvision(other, plain)
    assert_same_bits(torchvision(other), rounded)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(other.predictor(x).array, model.predictor(x).array)


@pytest.mark.parametrize(("key", "prefix"), [("state_dict", "module."), ("model", ""), ("model", "module._orig_mod.")])
def test_checkpoints_of_training_scripts(key, prefix):
    network, other = small(), MODELS["resnet8"](5)
    state = {prefix + name: array for name, array in torchvision(network).items()}
    load_torchvision(other, {key: state, "epoch": 3, "optimizer": {}})
    assert_same_bits(contents(other), contents(network))


def test_parameters_with_gradients_are_taken(torch):
    layer, other = torch.nn.Linear(2, 3), L.Linear(2, 3)
    load_torchvision(other, dict(layer.named_parameters()))
    np.testing.assert_array_equal(other.W.array, layer.weight.detach().numpy())


def test_a_parameter_that_is_not_initialized():
    """It takes the shape of the weights; it has none to give."""
    other = L.Linear(None, 3)
    with pytest.raises(WeightsError, match=r"^W is not initialized; call the model on some input first$"):
        torchvision(other)
    load_torchvision(other, torchvision(L.Linear(2, 3)))
    assert other.W.shape == (3, 2)


# What does not fit


def _without(name):
    return lambda state: state.pop(name)


def _with(name, make):
    return lambda state: state.update({name: make(state.get(name))})


UNFIT = [
    (_without("fc.bias"), r"lacks fc\.bias \(5,\), which CifarResNet here has: weights of another network"),
    (
        _without("layer1.0.bn1.running_var"),
        r"lacks layer1\.0\.bn1\.running_var \(16,\), which CifarResNet here has: weights of another network",
    ),
    (
        _with("fc.scale", lambda _: np.ones(5, np.float32)),
        r"has fc\.scale, which CifarResNet here lacks: weights of another network",
    ),
    (_with("conv1.weight", lambda a: a[:, :, :1]), r"conv1\.weight has shape \(16, 3, 1, 3\); .* \(16, 3, 3, 3\)"),
    (_with("fc.weight", lambda a: a.T), r"fc\.weight has shape \(64, 5\); CifarResNet here has \(5, 64\)"),
    (_with("fc.bias", lambda a: a.astype(np.int8)), r"fc\.bias is int8; wanted: floating point"),
    (_with("fc.bias", lambda a: a.astype(complex)), r"fc\.bias is complex128; wanted: floating point"),
    (_with("fc.bias", lambda a: a.astype(object)), r"fc\.bias is object; wanted: floating point"),
    (_with("fc.bias", lambda a: a.astype(float) + 1e300), r"fc\.bias has numbers in float64 that float32 does not"),
    (_with("bn1.num_batches_tracked", lambda _: np.float32(1)), r"bn1\.num_\w+ is float32; wanted: integers"),
    (_with("fc.bias", lambda _: "no"), r"fc\.bias is not a tensor"),
    (_with(3, lambda _: "no"), r"has no tensors by name"),
]


@pytest.mark.parametrize(("change", "message"), UNFIT)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(change, message):
    network = small()
    state = torchvision(MODELS["resnet8"](5))
    before = {name: np.array(array) for name, array in contents(network).items()}
    change(state)
    with pytest.raises(WeightsError, match=f"^{message}"):
        load_torchvision(network, state)
    assert_same_bits(contents(network), before)


@pytest.mark.parametrize("state", [None, 3, [], {}, {"state_dict": {}}])
def test_what_is_no_state_dict(state):
    with pytest.raises(WeightsError, match=r"^has no tensors by name$"):
        load_torchvision(small(), state)


def test_tensors_that_are_not_dense(torch):
    state = {name: torch.from_numpy(array) for name, array in torchvision(small()).items()}
    state["fc.weight"] = state["fc.weight"].to_sparse()
    with pytest.raises(WeightsError, match=r"^fc\.weight is not a dense tensor of numbers$"):
        load_torchvision(small(), state)
    state["fc.weight"] = torch.empty(5, 64, device="meta")
    with pytest.raises(WeightsError, match=r"^fc\.weight is not a dense tensor of numbers$"):
        load_torchvision(small(), state)


@pytest.mark.parametrize("module", [state_dicts, torch_names])
def test_examples_run(module):
    assert doctest.testmod(module).failed == 0
