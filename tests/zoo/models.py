"""The zoo: every model that the tests of conversion run, by name, as :data:`tests.zoo.cases.CASES`."""

import functools

import chainer
import chainer.links as L
import numpy as np
from chainer import initializers

import models
from tests.zoo import blocks, heads, idioms, imagenet, mobile, trunks, user_functions
from tests.zoo.cases import CASES, case, images

__all__ = ["CASES", "blocks", "heads", "idioms", "imagenet", "mobile", "trunks", "user_functions"]


def _tame(build, ends=()):
    """Builds a large model with weights for which float32 keeps its digits, drawn by NumPy's faster generator.

    Left as they are, gradients of a deep ResNet have no digits in float32, whoever computes them (docs/primitives.md,
    "Why two runs part"): rounding decides for some of the millions of ReLUs, and each block makes errors larger. So
    channels are open or closed for good, by a beta of 5 or -5 or by the bias of a convolution without a normalization,
    and the normalizations before a sum add little and only what is positive.

    Args:
        build: returns the model.
        ends: how the paths of normalizations before a sum end.
    """

    @functools.wraps(build)
    def run():
        normal = initializers.Normal.__call__
        initializers.Normal.__call__ = lambda self, array: array.fill(0)
        try:
            model = build()
        finally:
            initializers.Normal.__call__ = normal
        random = np.random.default_rng(np.random.randint(2**31))
        for path, link in model.namedlinks():
            if isinstance(link, L.BatchNormalization):
                _choose_channels(link, random, path.endswith(tuple(ends)))
            elif hasattr(link, "W"):
                random.standard_normal(out=link.W.array, dtype=np.float32)
                link.W.array *= (2 / link.W.array[0].size) ** 0.5
                if isinstance(link, L.Linear):
                    link.W.array /= 4  # what is 4 deviations from 0 does not become larger from layer to layer
        return model

    return run


def _choose_channels(link, random, is_end):
    shape = link.gamma.shape
    link.gamma.array[...] = random.uniform(0.15, 0.25, shape) if is_end else random.uniform(0.8, 1.2, shape)
    link.beta.array[...] = 1.3 if is_end else random.choice([-5, 5], shape)
    link.beta.array += random.uniform(-0.1, 0.1, shape)
    link.decay = 0.1  # running statistics are near those of the batch at once, so that evaluation mode is as tame


class _ChooseChannels(chainer.LinkHook):
    """Gives convolutions and linear layers biases from what they compute: 4 standard deviations from 0."""

    name = "choose channels"

    def forward_postprocess(self, args):
        link, out = args.link, args.out
        if isinstance(link, L.Convolution2D):
            wanted = np.random.choice([-4, 4], link.b.shape) * out.array.std(axis=(0, 2, 3))
            shift = wanted - out.array.mean(axis=(0, 2, 3))
        elif isinstance(link, L.Linear):
            shift = np.random.choice([-4, 4], link.b.shape) * out.array.std()
        else:
            return
        link.b.array += shift.astype(np.float32)
        out.array += shift.astype(np.float32).reshape((-1,) + (1,) * (out.ndim - 2))


def _asking(layers, *shape):
    """Inputs of Chainer's own networks: images, and which layers to return."""
    return lambda random: {"x": images(*shape)(random), "layers": layers}


def _without_normalization(build, inputs):
    def run():
        model = _tame(build)()
        with _ChooseChannels(), chainer.using_config("train", False), chainer.no_backprop_mode():
            model(**inputs(np.random.RandomState(0)))
        return model

    return run


# 64 pixels and 8 images: with less, the statistics of the last stage are those of a handful of pixels.
for _depth in (18, 34, 50, 101, 152):
    case(f"resnet{_depth}", images(8, 3, 64, 64), large=True)(
        _tame(
            functools.partial(models.MODELS[f"resnet{_depth}"], 10),
            ["/bn2" if _depth < 50 else "/bn3", "/downsample/1"],
        )
    )

case("chainer_resnet50", _asking(["res3", "fc6"], 8, 3, 64, 64), large=True)(
    _tame(functools.partial(L.ResNet50Layers, pretrained_model=None), ["/bn3", "/bn4"])
)

for _name, _links, _layers in (
    ("chainer_vgg16", L.VGG16Layers, ["conv4_3", "fc8"]),
    ("chainer_googlenet", L.GoogLeNet, ["loss3_fc", "loss2_fc2", "loss1_fc2"]),
):
    _inputs = _asking(_layers, 1, 3, 224, 224)
    case(_name, _inputs, large=True)(_without_normalization(functools.partial(_links, pretrained_model=None), _inputs))
