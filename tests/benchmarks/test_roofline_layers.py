"""What a network computes, found for a roofline, and which of its layers belong together."""

import collections

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.links.model.vision import googlenet, vgg

from benchmarks.roofline import fusible_layers, levels
from benchmarks.roofline.network_layers import layers
from models import MODELS
from tests.benchmarks import roofline_small as small

pytestmark = pytest.mark.slow


def test_layers_of_a_small_network():
    network = layers(small.Small, small.SIZE)
    found = [(layer.name, layer.group, layer.kind, layer.sources, layer.outputs) for layer in network.layers]
    image = ((8, 4, 4),)
    assert found == [
        ("conv1", "conv1", "convolution", (None,), image),
        ("bn1", "bn1", "batch_normalization", (0,), image),
        ("", "bn1", "relu", (1,), image),
        ("conv2", "conv2", "convolution", (2,), image),
        ("bn2", "bn2", "batch_normalization", (3,), image),
        ("", "bn2", "add", (4, 2), image),
        ("", "bn2", "relu", (5,), image),
        ("", "bn2", "average_pooling", (6,), ((8, 1, 1),)),
        ("", "bn2", "view", (7,), ((8,),)),
        ("fc", "fc", "linear", (8,), ((1000,),)),
        ("", "fc", "loss", (9, None), ((),)),
    ]
    assert (network.weights, network.vectors) == (small.WEIGHTS, small.VECTORS)
    assert [layer.filters for layer in network.layers if layer.filters] == [(8, 3, 3, 3), (8, 8, 1, 1), (1000, 8)]


class Odd(chainer.Chain):
    """Shares a link, computes a weight, and something that is not used."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.inner = chainer.Sequential(L.Convolution2D(3, 3, 3, stride=2, pad=1, nobias=True), F.sigmoid)
            self.unused, self.fc = L.Linear(3, 7), L.Linear(3, classes)

    def forward(self, x):
        h = self.inner(self.inner(x - 0.5))
        h = F.mean(h, (2, 3))
        self.unused(h)
        return F.linear(h, F.normalize(self.fc.W), self.fc.b)


def test_layers_of_an_odd_network():
    found = layers(Odd, 9)
    assert [(layer.name, layer.kind) for layer in found.layers] == [
        ("", "other"),
        *[("inner/0", "convolution"), ("inner", "other")] * 2,
        *[("", "other")] * sum(layer.name == "" and layer.kind == "other" for layer in found.layers[5:]),
        *[("", "linear"), ("", "loss")],
    ]
    assert found.layers[0].inputs == ((3, 9, 9),)
    assert (found.weights, found.vectors) == (3 * 3 * 9 + 3 * 1000, 1000)  # the shared link once, the unused one never
    assert found.layers[-2].filters == (1000, 3)
    # an image that a function without parameters has changed needs no gradient
    kinds = [kernel.kind for kernel in levels.kernels(found, "nhwc", "float32", 1)]
    assert kinds.count("convolution_dgrad") == 1


def test_the_walk_leaves_chainers_configuration_alone():
    plain = layers(small.Small, small.SIZE)
    with chainer.using_config("dtype", np.float16), chainer.using_config("train", False), chainer.no_backprop_mode():
        assert layers(small.Small, small.SIZE) == plain
        assert chainer.config.dtype == np.float16
        assert not chainer.config.train
        assert not chainer.config.enable_backprop


def test_flops_of_a_convolution_in_groups():
    found = layers(MODELS["resnext50_32x4d"], 64)
    (layer,) = [layer for layer in found.layers if layer.name == "layer1/0/conv2"]
    (flops,) = {
        kernel.flops
        for kernel in levels.kernels(found, "nhwc", "float16", 1)
        if kernel.flops == 2 * 16**2 * 128 * 4 * 9 and kernel.group == "layer1"
    }
    assert layer.filters == (128, 4, 3, 3)
    assert flops == 2 * 16**2 * 128 * 128 * 9 // 32


class VGG16(vgg.VGG16Layers):
    def __init__(self, classes):
        super().__init__(pretrained_model=None)

    def forward(self, x):
        return super().forward(x, layers=["fc8"])["fc8"]


class Inception(googlenet.GoogLeNet):
    def __init__(self, classes):
        super().__init__(pretrained_model=None)

    def forward(self, x):
        return super().forward(x, layers=["loss3_fc"])["loss3_fc"]


def test_vgg16(monkeypatch):
    zeros = chainer.initializers.Zero()
    monkeypatch.setattr(vgg.normal, "Normal", lambda scale: zeros)  # 138 million random numbers take a while
    found = layers(VGG16, 224)
    assert found.parameters == 138_357_544
    kernels = levels.kernels(found, "nhwc", "float16", 1)
    assert sum(each.flops for each in kernels if each.kind in ("convolution", "linear")) == 2 * 15_470_264_320
    assert levels.kernels(found, "nhwc-fused", "float16", 1) == kernels  # there is no batch normalization
    assert sum(each.kind == "convolution_bias" for each in kernels) == 13


def test_googlenet():
    found = layers(Inception, 224)
    assert found.parameters == 6_998_552
    count = collections.Counter(layer.kind for layer in found.layers)
    assert (count["convolution"], count["concatenation"], count["max_pooling"]) == (57, 9, 4 + 9)
    # the input of each inception module is read by three convolutions and a pooling
    unfused = [kernel for kernel in levels.kernels(found, "nhwc", "float16", 1) if kernel.kind == "gradient_sum"]
    assert len(unfused) == 9
    assert unfused[-1].bytes == 5 * 2 * 192 * 28 * 28
    fused = levels.kernels(found, "nhwc-conv-fused", "float16", 1)
    assert not any(kernel.kind == "gradient_sum" for kernel in fused)
    other = {layer.name for layer in found.layers if layer.kind == "other"}
    assert other == {""}  # local response normalization and dropout, which the network itself calls


def test_patterns_of_resnet50():
    resnet50 = layers(MODELS["resnet50"], 32)
    found = fusible_layers.normalizations(resnet50.layers).values()
    kinds = collections.Counter((unit.add is not None, unit.relu is not None) for unit in found)
    assert kinds == {(False, True): 33, (True, True): 16, (False, False): 4}
    alone = [resnet50.layers[unit.layer].name for unit in found if unit.relu is None]
    assert alone == [f"layer{number}/0/downsample/1" for number in range(1, 5)]


class Shared(chainer.Chain):
    """A normalization and a sum that others read, too."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.conv, self.bn1 = L.Convolution2D(3, 3, 1, nobias=True), L.BatchNormalization(3)
            self.bn2, self.fc = L.BatchNormalization(3), L.Linear(3 * 16, classes)

    def forward(self, x):
        h = self.conv(x)
        normalized = self.bn1(h)
        total = self.bn2(h) + F.relu(normalized)
        return self.fc(F.relu(total) + total + normalized)


def test_what_somebody_else_reads_is_not_fused():
    found = layers(Shared, 4)
    assert [unit.relu for unit in fusible_layers.normalizations(found.layers).values()] == [None, None]
    assert levels.kernels(found, "nhwc-fused", "float16", 1) == levels.kernels(found, "nhwc", "float16", 1)


class Shortcuts(chainer.Chain):
    """Adds images, which learn nothing, and a normalization that others read, too; ends in rows."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            for number in range(1, 6):
                setattr(self, f"conv{number}", L.Convolution2D(3, 3, 1, nobias=True))
                setattr(self, f"bn{number}", L.BatchNormalization(3))
            self.fc, self.last = L.Linear(16, 5), L.Linear(15, classes)

    def forward(self, x):
        x = x - 0.5
        h = F.relu(self.bn1(self.conv1(x)) + x)
        shared = self.bn3(self.conv3(h))
        h = F.relu(self.bn2(self.conv2(h)) + shared)
        h = F.relu(self.bn4(self.conv4(h)) + shared)
        h = self.bn5(self.conv5(h)) + F.max_pooling_2d(h, 1) + F.average_pooling_2d(h, 1)
        return self.last(self.fc(F.reshape(h, (-1, 3, 16)), n_batch_axes=2))


def test_shortcuts_whose_gradient_is_not_there_or_not_alone():
    found = layers(Shortcuts, 4)
    assert [layer.inputs for layer in found.layers if layer.kind == "linear"] == [((3, 16),), ((15,),)]
    moved = {level: collections.defaultdict(list) for level in levels.LEVELS}
    for level, kinds in moved.items():
        for kernel in levels.kernels(found, level, "float32", 1):
            if kernel.kind in ("gradient_sum", "batch_normalization_backward"):
                kinds[kernel.kind, kernel.group].append(kernel.bytes)
    x, bits = 4 * 3 * 4 * 4, 3 * 4 * 4 // 8
    backward = "batch_normalization_backward"
    # the gradient of the images is not wanted
    sums = {group: found for (kind, group), found in moved["nhwc"].items() if kind == "gradient_sum"}
    assert sums == {"bn1": [3 * x], "bn3": [3 * x], "bn4": [4 * x]}
    assert moved["nhwc-fused"][backward, "bn1"] == [5 * x + 2 * bits]
    assert moved["nhwc-all-fused"] == {
        (backward, "bn1"): [3 * x],  # its sums are from dgrad of conv2 or conv3,
        (backward, "bn2"): [3 * x],  # of conv4,
        (backward, "bn3"): [5 * x],  # of none, as its gradient is a sum
        ("gradient_sum", "bn3"): [3 * x],
        # conv5 and two poolings read that of bn4: conv5 cannot add both gradients of the others
        (backward, "bn4"): [6 * x + 2 * bits],
        ("gradient_sum", "bn4"): [3 * x],
        (backward, "bn5"): [5 * x],
    }
