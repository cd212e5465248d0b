"""ResNet-50 and its relatives by hand, from the links of mixprec, as a network that is written for NHWC.

The parameters have the names and shapes of ``models/resnet.py``, so that snapshots fit both.
"""

import chainer

import mixprec.functions as F
import mixprec.links as L


def _convolution(in_channels, out_channels, ksize, stride=1, groups=1, dtype=None):
    he_normal = chainer.initializers.HeNormal(fan_option="fan_out")
    return L.Convolution2D(
        *(in_channels, out_channels, ksize, stride, ksize // 2),
        nobias=True,
        initialW=he_normal,
        groups=groups,
        dtype=dtype,
    )


def _batch_normalization(channels):
    return L.BatchNormalization(channels, decay=0.9, eps=1e-5)


def _projection(in_channels, out_channels, stride, dtype):
    if stride == 1 and in_channels == out_channels:
        return None
    return chainer.Sequential(
        _convolution(in_channels, out_channels, 1, stride, dtype=dtype), _batch_normalization(out_channels)
    )


class BasicBlock(chainer.Chain):
    """Two 3x3 convolutions and a shortcut, on (N, H, W, C)."""

    expansion = 1

    def __init__(self, in_channels, channels, stride, groups, width, dtype):
        super().__init__()
        with self.init_scope():
            self.conv1 = _convolution(in_channels, channels, 3, stride, dtype=dtype)
            self.bn1 = _batch_normalization(channels)
            self.conv2 = _convolution(channels, channels, 3, dtype=dtype)
            self.bn2 = _batch_normalization(channels)
            self.downsample = _projection(in_channels, channels, stride, dtype)

    def forward(self, x):
        h = self.bn1(self.conv1(x), relu=True)
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.bn2(self.conv2(h), add=shortcut, relu=True)


class Bottleneck(chainer.Chain):
    """1x1, 3x3 (with the stride, in groups) and 1x1 convolutions and a shortcut, on (N, H, W, C)."""

    expansion = 4

    def __init__(self, in_channels, channels, stride, groups, width, dtype):
        super().__init__()
        inner, out_channels = channels * width // 64 * groups, channels * self.expansion
        with self.init_scope():
            self.conv1 = _convolution(in_channels, inner, 1, dtype=dtype)
            self.bn1 = _batch_normalization(inner)
            self.conv2 = _convolution(inner, inner, 3, stride, groups, dtype)
            self.bn2 = _batch_normalization(inner)
            self.conv3 = _convolution(inner, out_channels, 1, dtype=dtype)
            self.bn3 = _batch_normalization(out_channels)
            self.downsample = _projection(in_channels, out_channels, stride, dtype)

    def forward(self, x):
        h = self.bn1(self.conv1(x), relu=True)
        h = self.bn2(self.conv2(h), relu=True)
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.bn3(self.conv3(h), add=shortcut, relu=True)


class ResNet(chainer.Chain):
    """Images (N, H, W, 3), or with a fourth channel of zeros -> logits (N, classes).

    Args:
        block: :class:`BasicBlock` or :class:`Bottleneck`.
        blocks: number of blocks in each of the four stages.
        classes: number of classes.
        groups: of the 3x3 convolutions of bottlenecks; ResNeXt (Xie et al. 2017, arXiv:1611.05431) has 32.
        width: channels of a group in the first stage, for ``groups`` > 1.
        dtype: storage dtype of weights and activations; ``None`` is that of ``chainer.config.dtype``.
    """

    def __init__(self, block, blocks, classes=1000, *, groups=1, width=64, dtype=None):
        super().__init__()
        out_channels = 64
        with self.init_scope():
            self.conv1 = _convolution(3, 64, 7, 2, dtype=dtype)
            self.bn1 = _batch_normalization(64)
            for number, count in enumerate(blocks, 1):
                stage = chainer.Sequential()
                for place in range(count):
                    in_channels, channels = out_channels, 32 * 2**number
                    stride = 2 if number > 1 and place == 0 else 1
                    stage.append(block(in_channels, channels, stride, groups, width, dtype))
                    out_channels = channels * block.expansion
                setattr(self, f"layer{number}", stage)
            self.fc = L.Linear(out_channels, classes, dtype=dtype)

    def forward(self, x):
        h = self.bn1(self.conv1(x), relu=True)
        h = F.max_pooling_2d(h, 3, stride=2, pad=1, cover_all=False)
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.fc(F.global_average_pooling_2d(h))


def resnet18(classes=1000, dtype=None):
    """Returns a ResNet-18."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, dtype=dtype)


def resnet50(classes=1000, dtype=None):
    """Returns a ResNet-50 v1.5."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, dtype=dtype)


def resnext50(classes=1000, dtype=None):
    """Returns a ResNeXt-50 32x4d."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, groups=32, width=4, dtype=dtype)
