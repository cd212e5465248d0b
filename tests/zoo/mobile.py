"""The zoo: channel attention, in the ways in which it is written, and depthwise convolutions."""

import chainer
import chainer.functions as F
import chainer.links as L

from tests.zoo.cases import case, images, itself, labelled

CLASSES = 5


def _times_broadcast(h, s):
    return h * F.broadcast_to(F.expand_dims(F.expand_dims(s, 2), 3), h.shape)


def _times_scale(h, s):
    return F.scale(h, s, axis=0)


def _times_reshaped(h, s):
    return h * F.reshape(s, s.shape + (1, 1))


def _times_reversed(h, s):
    h, s = F.broadcast(h, s[:, :, None, None])
    return s * h


class SEBlock(chainer.Chain):
    def __init__(self, channels, excite):
        super().__init__()
        self.excite = excite
        with self.init_scope():
            self.conv1 = L.Convolution2D(channels, channels, 3, pad=1, nobias=True)
            self.bn1 = L.BatchNormalization(channels)
            self.conv2 = L.Convolution2D(channels, channels, 3, pad=1, nobias=True)
            self.bn2 = L.BatchNormalization(channels)
            self.down = L.Linear(channels, channels // 2)
            self.up = L.Linear(channels // 2, channels)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        s = F.average(h, axis=(2, 3))
        s = F.sigmoid(self.up(F.relu(self.down(s))))
        return F.relu(self.excite(h, s) + x)


def _senet(excite):
    trunk = chainer.Sequential(
        L.Convolution2D(3, 8, 3, pad=1, nobias=True),
        L.BatchNormalization(8),
        F.relu,
        SEBlock(8, excite),
        SEBlock(8, excite),
        lambda h: F.mean(h, axis=(2, 3)),
        L.Linear(8, CLASSES),
    )
    return L.Classifier(trunk)


for _excite in (_times_broadcast, _times_scale, _times_reshaped, _times_reversed):
    case(f"senet{_excite.__name__}", labelled(4, 3, 10, 10), itself)(lambda excite=_excite: _senet(excite))


@case("mobilenet_depthwise", images(4, 3, 16, 16))
def mobilenet_depthwise():
    return _mobilenet(lambda channels, stride: L.DepthwiseConvolution2D(channels, 1, 3, stride, 1, nobias=True))


@case("mobilenet_groups", images(4, 3, 16, 16))
def mobilenet_groups():
    return _mobilenet(
        lambda channels, stride: L.Convolution2D(channels, channels, 3, stride, 1, nobias=True, groups=channels)
    )


def _mobilenet(depthwise):
    """Version 2: clipped ReLU, linear bottlenecks; the sum of two of them goes on without a ReLU."""

    class Inverted(chainer.Chain):
        def __init__(self, in_channels, out_channels, stride):
            super().__init__()
            hidden = 2 * in_channels
            self.shortcut = stride == 1 and in_channels == out_channels
            with self.init_scope():
                self.expand = L.Convolution2D(in_channels, hidden, 1, nobias=True)
                self.bn1 = L.BatchNormalization(hidden)
                self.depth = depthwise(hidden, stride)
                self.bn2 = L.BatchNormalization(hidden)
                self.project = L.Convolution2D(hidden, out_channels, 1, nobias=True)
                self.bn3 = L.BatchNormalization(out_channels)

        def forward(self, x):
            h = F.relu6(self.bn1(self.expand(x)))
            h = F.clipped_relu(self.bn2(self.depth(h)), 6.0)
            h = self.bn3(self.project(h))
            return h + x if self.shortcut else h

    return chainer.Sequential(
        L.Convolution2D(3, 8, 3, 2, 1, nobias=True),
        L.BatchNormalization(8),
        F.relu6,
        Inverted(8, 8, 1),
        Inverted(8, 12, 2),
        Inverted(12, 12, 1),
        lambda h: F.average_pooling_2d(h, h.shape[2:]),
        L.Linear(12, CLASSES),
    )
