"""The small ResNets of He et al. 2015 (arXiv:1512.03385), section 4.2: 6n+2 layers for images of about 32x32 pixels.

A 3x3 convolution with 16 channels, three stages of n basic blocks with 16, 32 and 64 channels, global average
pooling (so that any input size works), one linear layer. Where a block changes the shape, the shortcut is a 1x1
convolution with batch normalization as in the large ResNets (the paper's option B; its own CIFAR nets use option A,
zero padding, which saves 2,752 parameters).
"""

import chainer
import chainer.functions as F
import chainer.links as L

from .resnet import (
    BasicBlock,
    batch_normalization,
    convolution,
    global_average,
    set_stochastic_depth,
    stage,
    zero_last_scales,
)


class CifarResNet(chainer.Chain):
    """Images (B, 3, H, W) -> logits (B, classes).

    Args:
        blocks (int): Blocks in each of the three stages, n.
        classes (int): Number of classes.
        zero_init_residual (bool): See :func:`models.resnet.zero_last_scales`.
        stochastic_depth (float): From 0 to below 1, see :func:`models.resnet.set_stochastic_depth`.
    """

    def __init__(self, blocks, classes, zero_init_residual=False, stochastic_depth=0.0):
        super().__init__()
        with self.init_scope():
            self.conv1 = convolution(3, 16, 3)
            self.bn1 = batch_normalization(16)
            self.layer1 = stage(BasicBlock, 16, 16, blocks, stride=1)
            self.layer2 = stage(BasicBlock, 16, 32, blocks, stride=2)
            self.layer3 = stage(BasicBlock, 32, 64, blocks, stride=2)
            self.fc = L.Linear(64, classes)
        if zero_init_residual:
            zero_last_scales(self)
        set_stochastic_depth((self.layer1, self.layer2, self.layer3), stochastic_depth)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        return self.fc(global_average(h))


def resnet8(classes=10, zero_init_residual=False, stochastic_depth=0.0):
    return CifarResNet(1, classes, zero_init_residual, stochastic_depth)


def resnet14(classes=10, zero_init_residual=False, stochastic_depth=0.0):
    return CifarResNet(2, classes, zero_init_residual, stochastic_depth)


def resnet20(classes=10, zero_init_residual=False, stochastic_depth=0.0):
    return CifarResNet(3, classes, zero_init_residual, stochastic_depth)


def resnet32(classes=10, zero_init_residual=False, stochastic_depth=0.0):
    return CifarResNet(5, classes, zero_init_residual, stochastic_depth)


def resnet44(classes=10, zero_init_residual=False, stochastic_depth=0.0):
    return CifarResNet(7, classes, zero_init_residual, stochastic_depth)


def resnet56(classes=10, zero_init_residual=False, stochastic_depth=0.0):
    return CifarResNet(9, classes, zero_init_residual, stochastic_depth)


def resnet110(classes=10, zero_init_residual=False, stochastic_depth=0.0):
    return CifarResNet(18, classes, zero_init_residual, stochastic_depth)
