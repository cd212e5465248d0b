"""models/: sizes, names and strides as published, He's initial values, and one block against SciPy."""

import re
import sys
from pathlib import Path

import chainer
import chainer.links as L
import numpy as np
import pytest
from scipy.signal import correlate2d

import models
from mixprec.base.announcements import is_of
from models.resnet import BasicBlock, Bottleneck
from models.unet import UNet
from tests.cases import first

IMAGENET = {
    # torchvision's published parameter counts for 1000 classes.
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50_32x4d": 25_028_904,
}
CIFAR = [8, 20, 56]


def links_of(model, kind):
    return {name: link for name, link in model.namedlinks() if isinstance(link, kind)}


def images(count, side):
    return np.random.default_rng(0).standard_normal((count, 3, side, side)).astype(np.float32)


@pytest.mark.parametrize("name", first(1, IMAGENET))
def test_parameter_count_is_torchvisions(name):
    assert models.MODELS[name](1000).count_params() == IMAGENET[name]


@pytest.mark.parametrize("depth", CIFAR)
def test_small_resnet_has_its_depth_and_the_papers_parameters_plus_projections(depth):
    """Section 4.2 with option A: n blocks of two 3x3 convolutions at 16, 32, 64 channels; batch normalization has two
    parameters a channel. Option B adds two 1x1 convolutions with batch normalization."""
    n = (depth - 2) // 6
    convolutions = 9 * (3 * 16 + 2 * n * 16**2 + 16 * 32 + (2 * n - 1) * 32**2 + 32 * 64 + (2 * n - 1) * 64**2)
    normalizations = 2 * (16 + 2 * n * (16 + 32 + 64))
    projections = 16 * 32 + 32 * 64 + 2 * (32 + 64)
    model = models.MODELS[f"resnet{depth}"](10)
    assert model.count_params() == convolutions + normalizations + 64 * 10 + 10 + projections
    layers = links_of(model, (L.Convolution2D, L.Linear))
    assert sum("downsample" not in name for name in layers) == depth


def test_resnet20_has_the_papers_0_27_million_parameters():
    """269,722 with option A, as counted by others for the paper's 0.27M."""
    assert models.MODELS["resnet20"](10).count_params() - 2752 == 269_722


@pytest.mark.parametrize(
    ("name", "side"), first(2, [("resnet8", 32), ("resnet20", 40), ("resnet50", 64), ("resnext50_32x4d", 32)])
)
def test_logits_and_gradients_exist(name, side):
    model = models.MODELS[name](7)
    logits = model(images(2, side))
    assert logits.shape == (2, 7)
    assert logits.dtype == np.float32
    model.cleargrads()  # Chainer's gradients start as nan
    chainer.functions.softmax_cross_entropy(logits, np.array([3, 6], np.int32)).backward()
    for parameter_name, parameter in model.namedparams():
        assert parameter.grad.shape == parameter.shape, parameter_name
        assert np.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.slow
def test_resnet50_reduces_224_pixels_as_published():
    """Table 1: 112 pixels after the stem's convolution, then 56, 28, 14 and 7 in the stages."""
    model = models.MODELS["resnet50"](10)
    shapes, names = {}, {id(link): name for name, link in model.namedlinks()}

    class Watch(chainer.LinkHook):
        def forward_postprocess(self, args):
            shapes[names[id(args.link)]] = args.out.shape[1:]

    with chainer.using_config("train", False), chainer.no_backprop_mode(), Watch():
        assert model(images(1, 224)).shape == (1, 10)
    assert shapes["/conv1"] == (64, 112, 112)
    stages = [shapes[f"/layer{stage}"] for stage in (1, 2, 3, 4)]
    assert stages == [(256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7)]


@pytest.mark.slow
def test_resnet50_has_53_batch_normalizations_and_no_bias_in_its_53_convolutions():
    model = models.MODELS["resnet50"](1000)
    normalizations = links_of(model, L.BatchNormalization)
    convolutions = links_of(model, L.Convolution2D)
    assert len(normalizations) == len(convolutions) == 53
    assert all(link.b is None for link in convolutions.values())
    assert {(link.eps, link.decay) for link in normalizations.values()} == {(1e-5, 0.9)}


def test_stride_lies_in_the_3x3_convolution():
    """Version 1.5. Everything else but the stem and the shortcuts has stride 1."""
    convolutions = links_of(models.MODELS["resnet50"](1000), L.Convolution2D)
    strided = {name for name, link in convolutions.items() if link.stride == (2, 2)}
    assert strided == {
        "/conv1",
        *(f"/layer{stage}/0/conv2" for stage in (2, 3, 4)),
        *(f"/layer{stage}/0/downsample/0" for stage in (2, 3, 4)),
    }


def test_resnext_groups_its_3x3_convolutions():
    """Table 1 of the paper: 128 channels in 32 groups of four in the first stage, twice as many in each next one."""
    convolutions = links_of(models.MODELS["resnext50_32x4d"](1000), L.Convolution2D)
    grouped = {name: link.W.shape for name, link in convolutions.items() if link.groups != 1}
    assert set(grouped) == {name for name in convolutions if name.endswith("conv2")}
    assert len(grouped) == 16
    for stage in (1, 2, 3, 4):
        width = 64 * 2**stage
        assert grouped[f"/layer{stage}/0/conv2"] == (width, width // 32, 3, 3)
    assert {link.groups for link in convolutions.values()} == {1, 32}


def test_convolutions_start_from_hes_normal_distribution_over_the_fan_out():
    """The standard deviation of n normal numbers has a relative error of 1/sqrt(2 n): five of those are allowed."""
    for name, link in links_of(models.MODELS["resnet18"](1000), L.Convolution2D).items():
        weights = link.W.array
        out_channels, _, height, width = weights.shape
        expected = np.sqrt(2 / (out_channels * height * width))
        assert abs(weights.std() / expected - 1) < 5 / np.sqrt(2 * weights.size), name
        assert abs(weights.mean()) < 5 * expected / np.sqrt(weights.size), name


def convolved(x, weights, stride):
    """Convolution by SciPy in float64, padded by half the filter."""
    pad = weights.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    out = [
        [sum(correlate2d(image[c], kernel[c], "valid") for c in range(len(kernel))) for kernel in weights]
        for image in padded
    ]
    return np.array(out)[:, :, ::stride, ::stride]


def normalized(x, gamma, beta):
    mean, var = x.mean(axis=(0, 2, 3), keepdims=True), x.var(axis=(0, 2, 3), keepdims=True)
    return gamma[:, None, None] * (x - mean) / np.sqrt(var + 1e-5) + beta[:, None, None]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_block_agrees_with_scipy(block, stride):
    """Training mode, with random gamma and beta; the bound is float32's for sums over some hundred terms."""
    rng = np.random.default_rng(1)
    link = block(8 if stride == 2 else 4 * block.expansion, 4, stride)
    for name, parameter in link.namedparams():
        if name.endswith(("gamma", "beta")):
            parameter.array[...] = rng.uniform(0.5, 1.5, parameter.shape)
    x = rng.standard_normal((2, 8 if stride == 2 else 4 * block.expansion, 7, 6)).astype(np.float32)
    p = {name: parameter.array.astype(np.float64) for name, parameter in link.namedparams()}

    def conv_bn(h, conv, bn, stride=1):
        return normalized(convolved(h, p[f"{conv}/W"], stride), p[f"{bn}/gamma"], p[f"{bn}/beta"])

    def relu(h):
        return np.maximum(h, 0)

    wide = x.astype(np.float64)
    if block is BasicBlock:
        h = conv_bn(relu(conv_bn(wide, "/conv1", "/bn1", stride)), "/conv2", "/bn2")
    else:
        h = relu(conv_bn(relu(conv_bn(wide, "/conv1", "/bn1")), "/conv2", "/bn2", stride))
        h = conv_bn(h, "/conv3", "/bn3")
    shortcut = wide if link.downsample is None else conv_bn(wide, "/downsample/0", "/downsample/1", stride)
    assert (link.downsample is None) == (stride == 1)
    with chainer.using_config("train", True):
        np.testing.assert_allclose(link(x).array, relu(h + shortcut), rtol=0, atol=200 * np.finfo(np.float32).eps)


def test_models_do_not_import_mixprec():
    """But for stochastic depth, where a network asks for it."""
    found = [
        line
        for path in Path(models.__file__).parent.glob("*.py")
        for line in re.findall(r"^\s*(?:import|from) mixprec.*", path.read_text(), re.MULTILINE)
    ]
    assert found == ["    from mixprec.functions import stochastic_depth"]  # within a function


MODULES = [("mixprec", True), ("mixprec.functions.relu", True), ("mixprec.recipes", True), ("chainer.links", True)]
MODULES += [("mixprec.recipes.models.resnet", False), ("mixprecision", False), ("models.resnet", False), ("", False)]


@pytest.mark.parametrize(("module", "is_library"), MODULES)
def test_networks_that_come_with_mixprec_count_as_the_users_code(module, is_library):
    """Messages name the innermost line of the user's code, which may lie in such a network."""
    assert is_of(module, {"mixprec", "chainer"}) == is_library


@pytest.mark.slow
# github.com/milesial/Pytorch-UNet with deconvolutions has this number, for masks of one class.
def test_parameter_count_of_the_unet_is_that_of_others():
    assert UNet(1).count_params() == 31_037_633


def test_the_unet_has_logits_and_gradients_for_each_pixel():
    height, width = 48, 32
    model = UNet(3, width=2)
    x = np.random.default_rng(0).standard_normal((2, 3, height, width)).astype(np.float32)
    logits = model(x)
    assert logits.shape == (2, 3, height, width)
    assert logits.dtype == np.float32
    model.cleargrads()
    chainer.functions.softmax_cross_entropy(logits, np.ones((2, height, width), np.int32)).backward()
    for name, parameter in model.namedparams():
        assert np.isfinite(parameter.grad).all(), name


def test_the_unet_joins_what_it_had_at_the_same_resolution():
    """The paper's figure 1: five resolutions, and the way up gets twice as many channels as it keeps."""
    model = UNet(2, width=4)
    shapes, names = {}, {id(link): name for name, link in model.namedlinks()}

    class Watch(chainer.LinkHook):
        def forward_preprocess(self, args):
            shapes[names[id(args.link)]] = args.args[0].shape[1:]

    with chainer.using_config("train", False), chainer.no_backprop_mode(), Watch():
        model(images(1, 64))
    down = [shapes[f"/down/{level}"] for level in range(4)]
    assert down == [(3, 64, 64), (4, 32, 32), (8, 16, 16), (16, 8, 8)]
    assert shapes["/bottom"] == (32, 4, 4)
    join = [shapes[f"/join/{level}"] for level in range(4)]
    assert join == [(64, 8, 8), (32, 16, 16), (16, 32, 32), (8, 64, 64)]
    assert shapes["/head"] == (4, 64, 64)


@pytest.mark.parametrize(("name", "blocks"), first(1, [("resnet8", 3), ("resnet18", 8), ("resnet50", 16)]))
def test_stochastic_depth_grows_linearly_with_the_blocks(name, blocks):
    """As timm's: ``drop_path_rate * net_block_idx / (net_num_blocks - 1)``, in the order of the forward pass."""
    model = models.MODELS[name](10, stochastic_depth=0.3)
    called = []

    class Watch(chainer.LinkHook):
        def forward_preprocess(self, args):
            if isinstance(args.link, (BasicBlock, Bottleneck)):
                called.append(args.link.stochastic_depth)

    with chainer.using_config("train", False), chainer.no_backprop_mode(), Watch():
        model(images(1, 32))
    np.testing.assert_allclose(called, 0.3 * np.arange(blocks) / (blocks - 1))
    plain = models.MODELS[name](10)
    assert {link.stochastic_depth for link in plain.links() if isinstance(link, (BasicBlock, Bottleneck))} == {0.0}


def test_a_dropped_branch_leaves_the_shortcut():
    """In training; what is left of an image whose branches are all dropped is what its shortcuts make of it."""
    block = models.MODELS["resnet8"](10, stochastic_depth=0.5).layer1[0]
    block.stochastic_depth = 0.5
    x = np.abs(np.random.RandomState(0).normal(size=(32, 16, 6, 6)).astype(np.float32))
    y = block(x).array
    dropped = (y == x).all((1, 2, 3))
    assert 0 < dropped.sum() < 32
    with chainer.using_config("train", False):
        assert not (block(x).array == x).all((1, 2, 3)).any()


def test_without_stochastic_depth_the_blocks_ask_nothing_of_mixprec(monkeypatch):
    monkeypatch.setitem(sys.modules, "mixprec.functions", None)  # an import of it fails
    x = np.random.RandomState(0).normal(size=(4, 3, 32, 32)).astype(np.float32)
    assert models.MODELS["resnet8"](10)(x).shape == (4, 10)
    with pytest.raises(ImportError):
        models.MODELS["resnet8"](10, stochastic_depth=0.5)(x)
