"""The zoo: one residual block, in the many ways that people write it, and what they do to its parts."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.functions import relu

from tests.zoo.cases import case, images

IMAGES = images(4, 3, 8, 8)
WIDTH = 6


class Block(chainer.Chain):
    """The parts: a stem, two convolutions with normalizations, a projection with its own, a head."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = L.Convolution2D(3, WIDTH, 3, pad=1, nobias=True)
            self.conv1 = L.Convolution2D(WIDTH, WIDTH, 3, pad=1, nobias=True)
            self.bn1 = L.BatchNormalization(WIDTH)
            self.conv2 = L.Convolution2D(WIDTH, WIDTH, 3, pad=1, nobias=True)
            self.bn2 = L.BatchNormalization(WIDTH)
            self.conv3 = L.Convolution2D(WIDTH, WIDTH, 1, nobias=True)
            self.bn3 = L.BatchNormalization(WIDTH)
            self.fc = L.Linear(WIDTH, 5)
        self.calls = 0
        self.register_persistent("calls")

    def forward(self, x):
        h = self.block(self.stem(x))
        return self.fc(F.average(h, axis=(2, 3)))


def block(inputs=IMAGES, loss=None, **options):
    """Registers a function of (model, x) as a case of its own: the block between stem and head."""

    def register(function):
        kind = type(function.__name__, (Block,), {"block": function})
        case(function.__name__, inputs, loss, **options)(kind)
        return function

    return register


def forward(inputs=IMAGES, loss=None, **options):
    """Registers a function as the whole forward of the block's parts."""

    def register(function):
        kind = type(function.__name__, (Block,), {"forward": function})
        case(function.__name__, inputs, loss, **options)(kind)
        return function

    return register


@block()
def sum_with_plus(self, x):
    return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + x)


@block()
def sum_in_place(self, x):
    h = relu(self.bn1(self.conv1(x)))
    h = self.bn2(self.conv2(h))
    h += x
    return relu(h)


@block()
def shortcut_comes_first(self, x):
    h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
    h = x + h
    h = F.relu(h)
    return h


@block()
def sum_of_three(self, x):
    return F.relu(F.add(self.bn1(self.conv1(x)), self.bn2(self.conv2(x)), self.bn3(self.conv3(x))))


@block()
def both_have_their_own(self, x):
    h = F.relu(self.bn1(self.conv1(x)))
    return F.relu(self.bn2(self.conv2(h)) + self.bn3(self.conv3(x)))


@block()
def sum_after_relu(self, x):
    h1 = self.conv1(x)
    h2 = self.bn1(h1)
    h3 = F.relu(h2)
    return x + h3


@block()
def identity_after_sum(self, x):
    """As in ResNet version 2: nothing follows the sum."""
    h = self.conv1(F.relu(self.bn1(x)))
    h = self.conv2(F.relu(self.bn2(h)))
    return h + x


@block()
def relu_of_relu(self, x):
    return F.relu(F.relu(self.bn1(self.conv1(x))))


@block()
def normalized_twice(self, x):
    self.bn2.eps = 0.5  # else gamma of the first would have no influence, and its gradient no true digits
    return F.relu(self.bn2(self.bn1(self.conv1(x))))


@block()
def difference(self, x):
    h = F.relu(x - self.bn1(self.conv1(x)))
    return F.relu(self.bn2(self.conv2(h)) - x) - self.bn3(h)


@block()
def sum_with_an_array(self, x):
    h = self.bn1(self.conv1(x))
    noise = self.xp.linspace(-1, 1, h.size).reshape(h.shape).astype(h.dtype)
    return F.relu(h + noise)


@block()
def sum_that_broadcasts(self, x):
    h = self.bn1(self.conv1(x))
    offset = self.xp.linspace(-1, 1, WIDTH).astype(h.dtype)[None, :, None, None]
    h = F.relu(h + offset)
    h = F.relu(F.mean(x, axis=1, keepdims=True) + self.bn2(self.conv2(h)))
    return F.relu(F.bias(self.bn3(self.conv3(h)), offset[0, :, 0, 0], axis=1))


@block()
def not_a_relu(self, x):
    h = F.leaky_relu(self.bn1(self.conv1(x)), slope=0.1)
    h = F.clipped_relu(self.bn2(self.conv2(h)), z=1.5)
    return F.relu6(self.bn3(self.conv3(h)) + x)


@block()
def used_twice(self, x):
    h = self.bn1(self.conv1(x))
    return F.relu(h) + F.sigmoid(h)


@block(kept=("h",))
def kept(self, x):
    self.h = self.bn1(self.conv1(x))
    return F.relu(self.h)


@block()
def read_by_array(self, x):
    h = self.bn1(self.conv1(x))
    mean = h.array.mean(axis=(0, 2, 3))
    assert mean.shape == (WIDTH,)
    h = F.relu(h)
    return h * float(1 + np.abs(mean).sum())


@block()
def asked_for_its_shape(self, x):
    h = self.bn1(self.conv1(x))
    n, c, height, width = h.shape
    assert (h.ndim, h.size, len(h)) == (4, n * c * height * width, n)
    h = F.relu(h + x)
    assert h.dtype.kind == "f"
    return F.reshape(h, (n, c, height // 2, 2, width))[:, :, :, 0, :]
