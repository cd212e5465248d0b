"""The zoo: trunks with functions that are not in every network, and with functions of the user's own."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from tests.zoo.cases import case, images, itself

IMAGES = images(2, 3, 16, 16)


def conv_bn_relu(in_channels, out_channels, ksize=3, stride=1, **options):
    return chainer.Sequential(
        L.Convolution2D(in_channels, out_channels, ksize, stride, ksize // 2, nobias=True, **options),
        L.BatchNormalization(out_channels),
        F.relu,
    )


class Trunk(chainer.Chain):
    """Two blocks, the middle that a case is about, and a block after it."""

    channels = 8  # of the middle's output

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.before = conv_bn_relu(3, 8)
            self.after = L.Convolution2D(self.channels, 4, 3, pad=1)
            self.bn = L.BatchNormalization(4)
        self.prepare()

    def prepare(self):
        pass

    def forward(self, x):
        h = self.middle(self.before(x))
        return F.relu(self.bn(self.after(h)))


def middle(channels=8, inputs=IMAGES, prepare=None, loss=None, **options):
    """Registers a function of (model, h) with h (2, 8, 16, 16) as a case of its own."""

    def register(function):
        members = {"middle": function, "channels": channels}
        if prepare is not None:
            members["prepare"] = prepare
        kind = type(function.__name__, (Trunk,), members)
        case(function.__name__, inputs, loss, **options)(kind)
        return function

    return register


@case("fpn", IMAGES)
class FPN(chainer.Chain):
    """A pyramid of features: what is coarse is made larger and added to what is fine."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.c2 = conv_bn_relu(3, 6)
            self.c3 = conv_bn_relu(6, 8, stride=2)
            self.c4 = conv_bn_relu(8, 10, stride=2)
            self.lateral2 = L.Convolution2D(6, 5, 1)
            self.lateral3 = L.Convolution2D(8, 5, 1)
            self.lateral4 = L.Convolution2D(10, 5, 1)
            self.smooth = L.Convolution2D(5, 5, 3, pad=1)

    def forward(self, x):
        c2 = self.c2(x)
        c3 = self.c3(c2)
        c4 = self.c4(c3)
        p4 = self.lateral4(c4)
        p3 = self.lateral3(c3) + F.unpooling_2d(p4, 2, cover_all=False)
        p2 = self.lateral2(c2) + F.resize_images(p3, c2.shape[2:])
        p5 = F.max_pooling_2d(p4, 1, stride=2, cover_all=False)
        return [self.smooth(p) for p in (p2, p3, p4, p5)]


@case("segnet", IMAGES)
class SegNet(chainer.Chain):
    """Pooling tells where its maxima were, and what is unpooled goes back there."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.down1, self.down2 = conv_bn_relu(3, 6), conv_bn_relu(6, 6)
            self.up2, self.up1 = conv_bn_relu(6, 6), conv_bn_relu(6, 4)

    def forward(self, x):
        h = self.down1(x)
        h, first = F.max_pooling_2d(h, 2, stride=2, return_indices=True)
        shape = h.shape[2:]
        h, second = F.max_pooling_2d(self.down2(h), 2, stride=2, return_indices=True)
        h = self.up2(F.upsampling_2d(h, second, ksize=2, stride=2, outsize=shape))
        return self.up1(F.upsampling_2d(h, first, ksize=2, stride=2, outsize=x.shape[2:]))


def _shuffle(h, groups):
    n, c, height, width = h.shape
    h = F.reshape(h, (n, groups, c // groups, height, width))
    h = F.transpose(h, (0, 2, 1, 3, 4))
    return F.reshape(h, (n, c, height, width))


@case("shufflenet", IMAGES)
class ShuffleNet(chainer.Chain):
    """Version 2: halves of the channels, and groups that are shuffled."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = conv_bn_relu(3, 8)
            self.conv1 = conv_bn_relu(4, 4, 1)
            self.depth = L.DepthwiseConvolution2D(4, 1, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(4)
            self.conv2 = conv_bn_relu(4, 4, 1)
            self.grouped = conv_bn_relu(8, 8, groups=4)

    def forward(self, x):
        h = self.stem(x)
        left, right = F.split_axis(h, 2, axis=1)
        right = self.conv2(self.bn(self.depth(self.conv1(right))))
        h = _shuffle(F.concat((left, right), axis=1), 2)
        return F.relu(self.grouped(h) + h)


@middle(channels=8)
def slices_of_channels(self, h):
    return F.concat([h[:, 6:], h[:, ::-2], h[:, 1:3] * h[:, 4:6]], axis=1)


@middle(channels=6)
def unequal_split(self, h):
    a, b, c = F.split_axis(h, [2, 5], axis=1)
    return F.concat((c, F.relu(b - F.broadcast_to(a[:, :1], b.shape))), 1)


@middle()
def slices_of_pixels(self, h):
    return F.concat((h[:, :, ::2, :], h[:, :, 1::2, 2:].array.mean() * h[:, :, :8]), axis=2)[..., ::-1]


@middle()
def padded(self, h):
    return F.pad(h, [(0, 0), (0, 0), (1, 2), (0, 1)], "constant")


@middle(channels=10)
def channels_of_zeros(self, h):
    """A shortcut without a projection: zeros are appended."""
    zeros = self.xp.zeros((h.shape[0], 2, 16, 16), h.dtype)
    return F.concat((h, zeros))


@middle(channels=4)
def maxout(self, h):
    return F.maxout(h, 2)


@middle(prepare=lambda self: self.add_link("act", L.PReLU((8,))) or self.act.W.array.__setitem__(..., 0.1))
def prelu(self, h):
    return self.act(h - 0.5)


@middle()
def other_activations(self, h):
    h = F.elu(h - 0.4) + F.softplus(h) + F.tanh(h)
    return F.hard_sigmoid(h) * F.selu(F.sigmoid(h)) + F.swish(h, h.xp.ones((8,), h.dtype)) + F.absolute(h) ** 2


@middle(channels=16)
def crelu(self, h):
    return F.crelu(h - 0.5)


@middle()
def softmax_of_channels(self, h):
    return h * F.softmax(h, axis=1) + F.log_softmax(h) + F.normalize(h + 1, axis=1)


@middle()
def attention_of_pixels(self, h):
    """As non-local networks: pixels attend to pixels through matrix products."""
    n, c, height, width = h.shape
    flat = F.reshape(h, (n, c, height * width))
    weights = F.softmax(F.matmul(flat, flat, transa=True) * 0.1, axis=2)
    y = F.matmul(flat, weights, transb=True)
    return F.reshape(y, h.shape) + h


@middle()
def attention_of_channels(self, h):
    """CBAM's: pooled both ways over pixels, then over channels."""
    s = F.max(h, axis=(2, 3), keepdims=True) + F.average(h, axis=(2, 3), keepdims=True)
    h = h * F.broadcast_to(F.sigmoid(s), h.shape)
    m = F.concat([F.max(h, axis=1, keepdims=True), F.mean(h, axis=1, keepdims=True)], axis=1)
    return h * F.broadcast_to(F.sigmoid(F.sum(m, axis=1, keepdims=True)), h.shape)


@middle(channels=2)
def moved_axes(self, h):
    h = F.moveaxis(h, 1, 3)
    h = F.rollaxis(h, 3, 1)
    h = F.swapaxes(F.swapaxes(h, 2, 3), 2, 3)
    return F.depth2space(F.flip(h, 1), 2)


@middle(channels=32)
def space_to_depth(self, h):
    return F.space2depth(h, 2)


@middle()
def pixels_are_features(self, h):
    """Somebody else's layout: a linear layer for each pixel, on (N * H * W, C)."""
    n, c, height, width = h.shape
    h = F.reshape(F.transpose(h, (0, 2, 3, 1)), (-1, c))
    h = F.relu(h) * 2
    return F.transpose(F.reshape(h, (n, height, width, c)), (0, 3, 1, 2))


@middle()
def where_and_minimum(self, h):
    h = F.where(h.array > 0.3, h, 0.6 - h)
    return F.minimum(h, F.clip(h * 2, -1.0, 1.0)) + F.scale(h, F.sum(h, axis=(0, 2, 3)), axis=1) * 1e-2


@middle()
def summed_over_batch(self, h):
    mean = F.mean(h, axis=0, keepdims=True)
    return h - F.broadcast_to(mean, h.shape) + F.cumsum(h, axis=1) * 0.1


@middle(prepare=lambda self: self.add_link("norm", L.GroupNormalization(4, 8)))
def group_normalization(self, h):
    return F.relu(self.norm(h) + h)


@middle(prepare=lambda self: self.add_link("norm", L.BatchRenormalization(8)))
def batch_renormalization(self, h):
    return F.relu(self.norm(h))


@middle(prepare=lambda self: self.add_link("norm", L.LayerNormalization(8 * 16 * 16)))
def layer_normalization(self, h):
    return F.reshape(self.norm(F.reshape(h, (2, -1))), h.shape)


@middle(prepare=lambda self: self.add_link("norm", L.BatchNormalization(axis=(0, 1))))
def normalization_of_pixels(self, h):
    """A batch normalization whose axis is not that of the channels."""
    return F.relu(self.norm(h))


@middle(inputs=images(8, 3, 16, 16), prepare=lambda self: self.add_link("norm", L.BatchNormalization((8, 16, 16))))
def normalization_over_the_batch(self, h):
    return F.relu(self.norm(h) + h)


def _scales(self):
    with self.init_scope():
        self.scale = L.Scale(axis=1, W_shape=(8,), bias_term=True)
        self.gate = chainer.Parameter(np.linspace(0.5, 1.5, 8, dtype=np.float32).reshape(1, 8, 1, 1))


@middle(prepare=_scales)
def scales(self, h):
    return self.scale(h) + h * F.broadcast_to(self.gate, h.shape)


def _odd_convolutions(self):
    with self.init_scope():
        self.dilated = L.DilatedConvolution2D(8, 8, 3, pad=2, dilate=2)
        self.strided = L.Convolution2D(8, 8, (3, 1), stride=(2, 1), pad=(1, 0), dilate=1)
        self.grouped = L.Deconvolution2D(8, 8, (2, 1), stride=(2, 1), groups=2)
        self.local = L.LocalConvolution2D(8, 8, 16, 3, stride=1)
        self.weights = chainer.Parameter(np.random.normal(0, 0.2, (8, 8, 1, 1)).astype("f"))


@middle(prepare=_odd_convolutions)
def odd_convolutions(self, h):
    h = self.dilated(h) + self.grouped(F.relu(self.strided(h)))
    h = F.convolution_2d(F.relu(h), self.weights * 2)
    return self.local(h)


@middle(channels=8)
def odd_pooling(self, h):
    h = F.max_pooling_2d(h, (3, 2), stride=(2, 1), pad=(1, 0)) * 1.0
    a = F.average_pooling_2d(h, 3, stride=2, pad=1)
    b = F.average_pooling_nd(h, 3, stride=2, pad=1, pad_value=None)
    return F.max_pooling_nd(a + b, 2, stride=1, cover_all=False)


@case("spatial_pyramid", lambda random: (IMAGES(random), random.randint(0, 5, 2).astype("i")), itself)
def spatial_pyramid():
    """A head for images of any size."""
    return L.Classifier(
        chainer.Sequential(
            conv_bn_relu(3, 6), lambda h: F.spatial_pyramid_pooling_2d(h, 3, pooling="max"), L.Linear(None, 5)
        )
    )


@case("sound", images(3, 2, 40))
def sound():
    """One axis."""
    return chainer.Sequential(
        L.Convolution1D(2, 6, 5, stride=2, pad=2, nobias=True),
        L.BatchNormalization(6),
        F.relu,
        lambda h: F.max_pooling_1d(h, 2),
        L.ConvolutionND(1, 6, 4, 3, groups=2),
        F.elu,
        L.Deconvolution1D(4, 3, 3),
        L.Linear(None, 5),
    )


@case("volumes", images(2, 2, 6, 8, 7))
def volumes():
    """Three axes."""
    return chainer.Sequential(
        L.Convolution3D(2, 4, 3, pad=1, nobias=True),
        L.BatchNormalization(4),
        F.relu,
        lambda h: F.average_pooling_3d(h, 2),
        L.Deconvolution3D(4, 3, 2, stride=2),
        L.BatchNormalization(3),
        F.relu,
        lambda h: F.average(h, axis=(2, 3, 4)),
        L.Linear(3, 5),
    )


@case("video", images(2, 3, 4, 8, 8))
class Video(chainer.Chain):
    """Images of all times are one batch, then one volume again."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.image = conv_bn_relu(3, 6)
            self.time = L.Convolution3D(6, 4, (3, 1, 1))

    def forward(self, x):
        n, c, t, height, width = x.shape
        h = F.reshape(F.transpose(chainer.as_variable(x), (0, 2, 1, 3, 4)), (n * t, c, height, width))
        h = F.max_pooling_2d(self.image(h), 2)
        h = F.transpose(F.reshape(h, (n, t) + h.shape[1:]), (0, 2, 1, 3, 4))
        return self.time(h)
