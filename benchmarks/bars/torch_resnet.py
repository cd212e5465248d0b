"""ResNet and ResNeXt for ImageNet in PyTorch, as torchvision has them: the twins of plain Chainer's.

He et al. 2015, arXiv:1512.03385, in version 1.5: the bottleneck's stride lies in its 3x3 convolution. Names of
parameters, epsilon, momentum and initial values are torchvision's.
"""

from torch import nn


def network(arch, classes=1000):
    """Returns a module from images (N, 3, H, W) to logits (N, classes), on the CPU, in float32.

    Args:
        arch: one of :data:`benchmarks.bars.pytorch_rows.ARCHS`.
        classes: number of classes.
    """
    block, blocks = _ARCHS[arch]
    return _ResNet(block, blocks, classes)


def _convolution(in_channels, out_channels, ksize, stride=1, groups=1):
    convolution = nn.Conv2d(in_channels, out_channels, ksize, stride, ksize // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


def _batch_normalization(channels):
    normalization = nn.BatchNorm2d(channels)
    normalization.num_batches_tracked = None  # only an average without a fixed momentum needs it: a launch less
    return normalization


def _projection(in_channels, out_channels, stride):
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(_convolution(in_channels, out_channels, 1, stride), _batch_normalization(out_channels))


class _BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_channels, channels, stride):
        super().__init__()
        self.conv1 = _convolution(in_channels, channels, 3, stride)
        self.bn1 = _batch_normalization(channels)
        self.conv2 = _convolution(channels, channels, 3)
        self.bn2 = _batch_normalization(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(in_channels, channels, stride)

    def forward(self, x):
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        h += x if self.downsample is None else self.downsample(x)
        return self.relu(h)


class _Bottleneck(nn.Module):
    expansion = 4
    groups, group_width = 1, 64

    def __init__(self, in_channels, channels, stride):
        super().__init__()
        width = channels * self.groups * self.group_width // 64
        out_channels = channels * self.expansion
        self.conv1 = _convolution(in_channels, width, 1)
        self.bn1 = _batch_normalization(width)
        self.conv2 = _convolution(width, width, 3, stride, self.groups)
        self.bn2 = _batch_normalization(width)
        self.conv3 = _convolution(width, out_channels, 1)
        self.bn3 = _batch_normalization(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(in_channels, out_channels, stride)

    def forward(self, x):
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.relu(self.bn2(self.conv2(h)))
        h = self.bn3(self.conv3(h))
        h += x if self.downsample is None else self.downsample(x)
        return self.relu(h)


class _ResNeXtBottleneck(_Bottleneck):
    """The 32x4d bottleneck of Xie et al. 2016, arXiv:1611.05431."""

    groups, group_width = 32, 4


class _ResNet(nn.Module):
    def __init__(self, block, blocks, classes):
        super().__init__()
        width = block.expansion
        self.conv1 = _convolution(3, 64, 7, stride=2)
        self.bn1 = _batch_normalization(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, blocks[0], stride=1)
        self.layer2 = _stage(block, 64 * width, 128, blocks[1], stride=2)
        self.layer3 = _stage(block, 128 * width, 256, blocks[2], stride=2)
        self.layer4 = _stage(block, 256 * width, 512, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * width, classes)

    def forward(self, x):
        h = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.fc(self.avgpool(h).flatten(1))


def _stage(block, in_channels, channels, blocks, stride):
    out_channels = channels * block.expansion
    first = block(in_channels, channels, stride)
    return nn.Sequential(first, *(block(out_channels, channels, 1) for _ in range(blocks - 1)))


_ARCHS = {
    "resnet18": (_BasicBlock, (2, 2, 2, 2)),
    "resnet34": (_BasicBlock, (3, 4, 6, 3)),
    "resnet50": (_Bottleneck, (3, 4, 6, 3)),
    "resnet101": (_Bottleneck, (3, 4, 23, 3)),
    "resnet152": (_Bottleneck, (3, 8, 36, 3)),
    "resnext50_32x4d": (_ResNeXtBottleneck, (3, 4, 6, 3)),
}
