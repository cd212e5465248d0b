"""Plain Chainer models, NCHW and float32, as users write them; of mixprec they use only its stochastic depth.

``MODELS[name](classes)`` makes a model; calling it on images (B, 3, H, W) returns logits (B, classes).
"""

from . import resnet, resnet_cifar

MODELS = {
    "resnet8": resnet_cifar.resnet8,
    "resnet14": resnet_cifar.resnet14,
    "resnet20": resnet_cifar.resnet20,
    "resnet32": resnet_cifar.resnet32,
    "resnet44": resnet_cifar.resnet44,
    "resnet56": resnet_cifar.resnet56,
    "resnet110": resnet_cifar.resnet110,
    "resnet10_small": resnet.resnet10_small,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "resnet101": resnet.resnet101,
    "resnet152": resnet.resnet152,
    "resnext50_32x4d": resnet.resnext50_32x4d,
}
