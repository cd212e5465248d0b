"""ResNet and ResNeXt for ImageNet (He et al. 2015, arXiv:1512.03385), version 1.5, with torchvision's names.

Only the blocks of a stage have other numbers: Chainer's Sequential numbers blocks after the first from the end.

In v1.5 the bottleneck's stride lies in its 3x3 convolution, not in the first 1x1. Convolutions have no bias and start
from He's normal distribution over the fan-out, like torchvision's; the last layer from Chainer's default. Batch
normalization has eps 1e-5 and decay 0.9, which is torchvision's momentum 0.1.
"""

import chainer
import chainer.functions as F
import chainer.links as L


def convolution(in_channels, out_channels, ksize, stride=1, groups=1):
    """Square convolution without bias that keeps the size when its stride is 1."""
    return L.Convolution2D(
        in_channels,
        out_channels,
        ksize,
        stride,
        pad=ksize // 2,
        nobias=True,
        groups=groups,
        initialW=chainer.initializers.HeNormal(fan_option="fan_out"),
    )


def batch_normalization(channels):
    return L.BatchNormalization(channels, decay=0.9, eps=1e-5)


def projection(in_channels, out_channels, stride):
    """Shortcut for a block that changes the shape (the paper's option B), or None where the identity fits."""
    if stride == 1 and in_channels == out_channels:
        return None
    return chainer.Sequential(convolution(in_channels, out_channels, 1, stride), batch_normalization(out_channels))


def dropped(h, ratio):
    """Stochastic depth of a residual branch (Huang et al. 2016, arXiv:1603.09382); mixprec is imported for it only."""
    if not ratio:
        return h
    from mixprec.functions import stochastic_depth

    return stochastic_depth(h, ratio)


def global_average(x):
    """(B, C, H, W) -> (B, C)."""
    return F.reshape(F.average_pooling_2d(x, x.shape[2:]), x.shape[:2])


class BasicBlock(chainer.Chain):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1
    last_normalization = "bn2"
    stochastic_depth = 0.0  # probability that an image skips the branch

    def __init__(self, in_channels, channels, stride):
        super().__init__()
        with self.init_scope():
            self.conv1 = convolution(in_channels, channels, 3, stride)
            self.bn1 = batch_normalization(channels)
            self.conv2 = convolution(channels, channels, 3)
            self.bn2 = batch_normalization(channels)
            self.downsample = projection(in_channels, channels, stride)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = dropped(self.bn2(self.conv2(h)), self.stochastic_depth)
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(h + shortcut)


class Bottleneck(chainer.Chain):
    """1x1, 3x3 (with the stride) and 1x1 convolutions, the last four times as wide, and a shortcut."""

    expansion = 4
    last_normalization = "bn3"
    stochastic_depth = 0.0
    groups, group_width = 1, 64  # of the 3x3 convolution; the width applies to the first stage

    def __init__(self, in_channels, channels, stride):
        super().__init__()
        width = channels * self.groups * self.group_width // 64
        out_channels = channels * self.expansion
        with self.init_scope():
            self.conv1 = convolution(in_channels, width, 1)
            self.bn1 = batch_normalization(width)
            self.conv2 = convolution(width, width, 3, stride, self.groups)
            self.bn2 = batch_normalization(width)
            self.conv3 = convolution(width, out_channels, 1)
            self.bn3 = batch_normalization(out_channels)
            self.downsample = projection(in_channels, out_channels, stride)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        h = dropped(self.bn3(self.conv3(h)), self.stochastic_depth)
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(h + shortcut)


class ResNeXtBottleneck(Bottleneck):
    """The 32x4d bottleneck of ResNeXt (Xie et al. 2016, arXiv:1611.05431)."""

    groups, group_width = 32, 4


def stage(block, in_channels, channels, blocks, stride):
    """Blocks of one width; the first takes the stride."""
    out_channels = channels * block.expansion
    first = block(in_channels, channels, stride)
    return chainer.Sequential(first, *(block(out_channels, channels, 1) for _ in range(blocks - 1)))


def zero_last_scales(model):
    """Sets the scale of the last batch normalization of each block of a model to 0.

    A block starts as the identity, or as its shortcut (Goyal et al. 2017, arXiv:1706.02677, section 5.1).
    """
    for link in model.links():
        if isinstance(link, (BasicBlock, Bottleneck)):
            getattr(link, link.last_normalization).gamma.array[...] = 0


def set_stochastic_depth(stages, ratio):
    """Sets the probability that an image skips the branch of each block: 0 in the first, ``ratio`` in the last.

    Block b of B has ``ratio * b / (B - 1)``, as in timm for ``drop_path_rate`` (``make_blocks`` in
    timm/models/resnet.py); Huang et al. 2016, section 3, begin with ``ratio / B``.
    """
    blocks = [block for each in stages for block in each]
    for place, block in enumerate(blocks):
        block.stochastic_depth = ratio * place / (len(blocks) - 1)


class ResNet(chainer.Chain):
    """Images (B, 3, H, W), usually 224x224 -> logits (B, classes).

    Args:
        block: :class:`BasicBlock`, :class:`Bottleneck` or :class:`ResNeXtBottleneck`.
        blocks (four ints): Blocks in each stage.
        classes (int): Number of classes.
        zero_init_residual (bool): See :func:`zero_last_scales`.
        stochastic_depth (float): From 0 to below 1, see :func:`set_stochastic_depth`.
        channels (int): Channels of the first convolution; each stage doubles the channels of the stage before.
        ksize (int): Height and width of the first convolution.
    """

    def __init__(self, block, blocks, classes, zero_init_residual=False, stochastic_depth=0.0, *, channels=64, ksize=7):
        super().__init__()
        c, width = channels, block.expansion
        with self.init_scope():
            self.conv1 = convolution(3, c, ksize, stride=2)
            self.bn1 = batch_normalization(c)
            self.layer1 = stage(block, c, c, blocks[0], stride=1)
            self.layer2 = stage(block, c * width, 2 * c, blocks[1], stride=2)
            self.layer3 = stage(block, 2 * c * width, 4 * c, blocks[2], stride=2)
            self.layer4 = stage(block, 4 * c * width, 8 * c, blocks[3], stride=2)
            self.fc = L.Linear(8 * c * width, classes)
        if zero_init_residual:
            zero_last_scales(self)
        set_stochastic_depth((self.layer1, self.layer2, self.layer3, self.layer4), stochastic_depth)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.max_pooling_2d(h, 3, stride=2, pad=1, cover_all=False)
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.fc(global_average(h))


def resnet10_small(classes=10, zero_init_residual=False, stochastic_depth=0.0):
    """A quarter of the channels, for images of about 64x64 pixels: a CPU trains it in minutes."""
    return ResNet(BasicBlock, (1, 1, 1, 1), classes, zero_init_residual, stochastic_depth, channels=16, ksize=5)


def resnet18(classes=1000, zero_init_residual=False, stochastic_depth=0.0):
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, zero_init_residual, stochastic_depth)


def resnet34(classes=1000, zero_init_residual=False, stochastic_depth=0.0):
    return ResNet(BasicBlock, (3, 4, 6, 3), classes, zero_init_residual, stochastic_depth)


def resnet50(classes=1000, zero_init_residual=False, stochastic_depth=0.0):
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, zero_init_residual, stochastic_depth)


def resnet101(classes=1000, zero_init_residual=False, stochastic_depth=0.0):
    return ResNet(Bottleneck, (3, 4, 23, 3), classes, zero_init_residual, stochastic_depth)


def resnet152(classes=1000, zero_init_residual=False, stochastic_depth=0.0):
    return ResNet(Bottleneck, (3, 8, 36, 3), classes, zero_init_residual, stochastic_depth)


def resnext50_32x4d(classes=1000, zero_init_residual=False, stochastic_depth=0.0):
    return ResNet(ResNeXtBottleneck, (3, 4, 6, 3), classes, zero_init_residual, stochastic_depth)
