"""The U-Net of Ronneberger et al. 2015 (arXiv:1505.04597) with batch normalization, for images of any size.

Two 3x3 convolutions at each of five resolutions, on the way down and on the way up again; max pooling between them,
2x2 deconvolutions with stride 2, and a 1x1 convolution at the end. Convolutions are padded, so that logits have the
size of the image; the paper crops instead. Batch normalization, which the paper does not have, follows each 3x3
convolution and replaces its bias.
"""

import chainer
import chainer.functions as F
import chainer.links as L

from .resnet import batch_normalization, convolution


class DoubleConvolution(chainer.Chain):
    """Two 3x3 convolutions, each with batch normalization and ReLU."""

    def __init__(self, in_channels, channels):
        super().__init__()
        with self.init_scope():
            self.conv1 = convolution(in_channels, channels, 3)
            self.bn1 = batch_normalization(channels)
            self.conv2 = convolution(channels, channels, 3)
            self.bn2 = batch_normalization(channels)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)))


class UNet(chainer.Chain):
    """Images (B, 3, H, W) -> logits (B, classes, H, W); H and W are multiples of 16.

    Args:
        classes (int): Number of classes per pixel.
        width (int): Channels at the full resolution, twice as many at each half of it; 64 in the paper.
    """

    def __init__(self, classes, width=64):
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        with self.init_scope():
            self.down = chainer.ChainList(*map(DoubleConvolution, [3, *widths[:3]], widths[:4]))
            self.bottom = DoubleConvolution(widths[3], widths[4])
            self.up = chainer.ChainList(*(L.Deconvolution2D(2 * n, n, 2, stride=2) for n in widths[3::-1]))
            self.join = chainer.ChainList(*(DoubleConvolution(2 * n, n) for n in widths[3::-1]))
            self.head = L.Convolution2D(width, classes, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pooling_2d(skips[-1], 2)
        x = self.bottom(x)
        for up, block in zip(self.up, self.join, strict=True):
            x = block(F.concat([skips.pop(), up(x)]))
        return self.head(x)
