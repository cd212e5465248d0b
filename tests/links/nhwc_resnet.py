"""A ResNet-18 by hand, from the links of mixprec, with the names and shapes of ``models/resnet.py``."""

import chainer

import mixprec.functions as F
import mixprec.links as L


def _convolution(in_channels, out_channels, ksize, stride, dtype):
    return L.Convolution2D(in_channels, out_channels, ksize, stride, ksize // 2, nobias=True, dtype=dtype)


def _batch_normalization(channels):
    return L.BatchNormalization(channels, decay=0.9, eps=1e-5)


def _projection(in_channels, channels, stride, dtype):
    if in_channels == channels:
        return None
    return chainer.Sequential(_convolution(in_channels, channels, 1, stride, dtype), _batch_normalization(channels))


class Block(chainer.Chain):
    """Two 3x3 convolutions and a shortcut, on (N, H, W, C)."""

    def __init__(self, in_channels, channels, stride, dtype):
        super().__init__()
        with self.init_scope():
            self.conv1 = _convolution(in_channels, channels, 3, stride, dtype)
            self.bn1 = _batch_normalization(channels)
            self.conv2 = _convolution(channels, channels, 3, 1, dtype)
            self.bn2 = _batch_normalization(channels)
            self.downsample = _projection(in_channels, channels, stride, dtype)

    def forward(self, x):
        h = self.bn1(self.conv1(x), relu=True)
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.bn2(self.conv2(h), add=shortcut, relu=True)


class ResNet18(chainer.Chain):
    """Images (N, H, W, 3), or with a fourth channel of zeros -> logits (N, classes).

    Args:
        classes: number of classes.
        dtype: storage dtype of weights and activations.
        blocks: number of blocks in each of the four stages.
    """

    def __init__(self, classes, dtype, blocks=2):
        super().__init__()
        in_channels = 64
        with self.init_scope():
            self.conv1 = _convolution(3, 64, 7, 2, dtype)
            self.bn1 = _batch_normalization(64)
            for number, channels in enumerate((64, 128, 256, 512), 1):
                first = Block(in_channels, channels, 1 if number == 1 else 2, dtype)
                others = [Block(channels, channels, 1, dtype) for _ in range(blocks - 1)]
                setattr(self, f"layer{number}", chainer.Sequential(first, *others))
                in_channels = channels
            self.fc = L.Linear(512, classes, dtype=dtype)

    def forward(self, x):
        h = self.bn1(self.conv1(x), relu=True)
        h = F.max_pooling_2d(h, 3, stride=2, pad=1, cover_all=False)
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.fc(F.global_average_pooling_2d(h))
