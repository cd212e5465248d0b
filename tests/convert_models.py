"""The zoo: every model that the tests of conversion run, by name, as :data:`convert_cases.CASES`."""

import functools

import chainer.links as L
import convert_heads
import convert_idioms
import convert_imagenet
import convert_trunks
import numpy as np
from chainer import initializers
from convert_cases import CASES, case, images

import models

__all__ = ["CASES", "convert_heads", "convert_idioms", "convert_imagenet", "convert_trunks"]


def _quickly(build):
    """Builds a large model without drawing a normal number for each weight: a few are repeated, in He's scale."""

    @functools.wraps(build)
    def run():
        normal = initializers.Normal.__call__
        initializers.Normal.__call__ = lambda self, array: array.fill(0)
        try:
            model = build()
        finally:
            initializers.Normal.__call__ = normal
        drawn = np.random.normal(size=9973).astype(np.float32)
        for _, param in sorted(model.namedparams()):
            if param.ndim > 1:
                param.array[...] = np.resize(drawn, param.shape) * (2 / param.array[0].size) ** 0.5
        return model

    return run


# 64 pixels and 8 images: with less, the statistics of the last stage are those of a handful of pixels.
for _depth in (18, 34, 50, 101, 152):
    case(f"resnet{_depth}", images(8, 3, 64, 64), large=True)(
        _quickly(functools.partial(models.MODELS[f"resnet{_depth}"], 10))
    )


def _asking(layers, *shape):
    """Inputs of Chainer's own networks: images, and which layers to return."""
    return lambda random: {"x": images(*shape)(random), "layers": layers}


for _name, _links, _inputs in (
    ("chainer_resnet50", L.ResNet50Layers, _asking(["res3", "fc6"], 8, 3, 64, 64)),
    ("chainer_vgg16", L.VGG16Layers, _asking(["conv4_3", "fc8"], 1, 3, 224, 224)),
    ("chainer_googlenet", L.GoogLeNet, _asking(["loss3_fc", "loss2_fc2", "loss1_fc2"], 1, 3, 224, 224)),
):
    case(_name, _inputs, large=True)(_quickly(functools.partial(_links, pretrained_model=None)))
