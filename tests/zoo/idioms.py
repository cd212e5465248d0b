"""The zoo: blocks that share parts, change the configuration, or decide as they run; forwards with odd results."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import link_hooks

from tests.zoo.blocks import IMAGES, WIDTH, Block, block, forward
from tests.zoo.cases import case, images


@block()
def one_bn_in_two_ways(self, x):
    """With a ReLU after it in one place, without in the other."""
    h = F.relu(self.bn1(self.conv1(x)))
    return F.sigmoid(self.bn1(self.conv2(h)))


@block()
def one_bn_whose_results_swap(self, x):
    """Running statistics move in the order of the calls, whatever order their results are used in."""
    h1 = self.bn1(self.conv1(x))
    h2 = self.bn1(self.conv2(x) + 1)
    h2 = F.relu(h2)
    return h2 * F.relu(h1)


@block()
def statistics_are_read_between(self, x):
    h = self.bn1(self.conv1(x))
    mean = float(abs(self.bn1.avg_mean).sum())
    return F.relu(h) * (1 + mean)


@block()
def forgotten(self, x):
    h = F.forget(lambda h: F.relu(self.bn1(self.conv1(h))), x)
    return F.forget(lambda a, b: F.relu(self.bn2(self.conv2(a)) + b), h, x)


@block(inputs=images(16, 3, 8, 8))
def functions_of_normalization(self, x):
    """Without a link: gamma and beta are somebody else's parameters, and other axes are reduced."""
    h = F.batch_normalization(self.conv1(x), self.bn1.gamma, self.bn1.beta)
    h = F.relu(h)
    size = h.shape[1:]
    ones, zeros = self.xp.ones(size, h.dtype), self.xp.zeros(size, h.dtype)
    return F.relu(F.batch_normalization(h, ones, zeros, axis=0) + x)


@forward()
def data_dependent(self, x):
    """Which layers are called, and how often, depends on numbers on the way."""
    h = F.relu(self.bn1(self.conv1(self.stem(x))))
    if float(F.mean(h).array) > float(F.mean(F.absolute(x)).array) * 0.5:
        h = F.relu(self.bn2(self.conv2(h)) + h)
    else:
        h = self.bn2(self.conv2(h))
    for _ in range(1 + int(h.array[0, 0, 0, 0] > 0)):
        h = F.relu(self.bn3(self.conv3(h)) + h)
    return self.fc(F.max(h, axis=(2, 3)))


@forward()
def changes_its_mind(self, x):
    """From the third call on a ReLU follows where there was none, and the other way round."""
    self.calls += 1
    h = self.bn1(self.conv1(self.stem(x)))
    k = F.relu(self.bn2(self.conv2(h))) if self.calls % 3 else self.bn2(self.conv2(h))
    h = h + k if self.calls % 2 else F.relu(h + k)
    return self.fc(F.max(h, axis=(2, 3)))


@forward(
    inputs=lambda random: {"images": IMAGES(random), "extra": {"scale": np.float32(2), "mask": IMAGES(random)[:, 0]}}
)
def keyword_arguments(self, *, images, extra, flag=True):
    h = F.relu(self.bn1(self.conv1(self.stem(images))))
    if flag:
        h = h * float(extra["scale"])
    h = h * F.broadcast_to(extra["mask"][:, None], h.shape)
    return {"logits": self.fc(F.average(h, axis=(2, 3)))}


@forward()
def siamese_side_by_side(self, x):
    """Both images go through each layer before the next one, and come out in the other order."""
    a, b = x, x[::-1] * 2
    a, b = self.stem(a), self.stem(b)
    a, b = self.bn1(self.conv1(a)), self.bn1(self.conv1(b))
    b, a = F.relu(b), F.relu(a)
    return self.fc(F.average(b * a, axis=(2, 3)))


@forward()
def adversarial(self, x):
    """A backward pass inside of the forward one: the loss on inputs that were moved along its gradient."""

    def logits(x):
        return self.fc(F.average(F.relu(self.bn1(self.conv1(self.stem(x)))), axis=(2, 3)))

    x = chainer.as_variable(x)
    moved = chainer.Variable(x.array)
    with chainer.force_backprop_mode():
        loss = F.sum(logits(moved) ** 2)
        (gradient,) = chainer.grad([loss], [moved])
    moved = x + 0.5 * gradient.array / abs(gradient.array).max()
    return logits(x), logits(moved)


@forward(inputs=lambda random: random.randint(0, 256, (4, 3, 8, 8)).astype(np.uint8))
def bytes_are_images(self, x):
    x = F.cast(x, chainer.config.dtype) / 127.5 - 1
    return self.fc(F.average(F.relu(self.bn1(self.conv1(self.stem(x)))), axis=(2, 3)))


@forward()
def several_outputs(self, x):
    """One of them is a normalization's, one a ReLU's that would be fused, one a number."""
    h1 = self.bn1(self.conv1(self.stem(x)))
    h2 = F.relu(h1)
    h3 = self.bn2(self.conv2(h2))
    h4 = F.relu(self.bn3(self.conv3(h2)))
    return {"features": (h2, [h3, h4]), "logits": self.fc(F.average(h4, axis=(2, 3))), "count": h4.size}


@forward()
def nothing_is_pooled(self, x):
    """The head is linear on flattened images: its weights know the order (C, H, W)."""
    h = F.relu(self.bn1(self.conv1(self.stem(x))))
    a = F.flatten(h[0])
    b = F.reshape(h, (len(h), -1))
    return self.fc(b[:, 5 : 5 + WIDTH]), a[::7]


@forward()
def one_channel_images(self, x):
    """Arrays whose two layouts are the same bytes."""
    h = F.relu(self.bn1(self.conv1(self.stem(x))))
    one = F.mean(h, axis=1, keepdims=True)
    point = F.average_pooling_2d(h, 8)
    return F.leaky_relu(one) * 2, self.fc(point) + F.sum(F.squeeze(point, (2, 3)))


@case("sequential", IMAGES)
def sequential():
    body = chainer.Sequential(
        L.Convolution2D(None, WIDTH, 3, pad=1, nobias=True), L.BatchNormalization(WIDTH), F.relu, lambda x: x * 2
    )
    pool = chainer.Sequential(lambda x: F.max_pooling_2d(x, 2))
    return chainer.Sequential(body.repeat(2), pool, L.Convolution2D(WIDTH, 4, 1), F.flatten, F.leaky_relu)


@case("tied", IMAGES)
class Tied(Block):
    """An autoencoder with the same filters both ways, and one link under two names."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.again = self.conv1
            self.other = L.Convolution2D(WIDTH, WIDTH, 3, pad=1, nobias=True)
            self.other.W = self.conv2.W

    def forward(self, x):
        h = F.relu(self.bn1(self.again(F.relu(self.conv1(self.stem(x))))))
        h = F.relu(self.bn2(self.other(self.conv2(h))))
        flipped = F.transpose(self.conv3.W, (1, 0, 2, 3))
        h = F.convolution_2d(F.relu(self.conv3(h)), flipped)
        return F.deconvolution_2d(h, self.stem.W, pad=1)


@case("spectral_normalization", IMAGES)
def spectral_normalization():
    """A hook that gives a link other weights while it is called."""
    net = chainer.Sequential(L.Convolution2D(3, 6, 3), L.BatchNormalization(6), F.relu, L.Convolution2D(6, 4, 3))
    for convolution in (net[0], net[3]):
        convolution.add_hook(link_hooks.SpectralNormalization())
    return net


@case("convolutional_lstm", images(3, 2, 3, 6, 6))
class ConvolutionalLSTM(chainer.Chain):
    """Images as a state, which goes on from one call to the next."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.inputs = L.Convolution2D(3, 16, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(16)
            self.states = L.Convolution2D(4, 16, 3, pad=1)
        self.c = self.h = None

    def forward(self, xs):
        for state in (self.c, self.h):
            if state is not None:
                state.unchain_backward()
        for x in xs:
            gates = self.bn(self.inputs(x))
            if self.h is not None:
                gates += self.states(self.h)
            a, i, f, o = F.split_axis(gates, 4, axis=1)
            new = F.sigmoid(i) * F.tanh(a)
            self.c = new if self.c is None else new + F.sigmoid(f) * self.c
            self.h = F.sigmoid(o) * F.tanh(self.c)
        return self.h


@case("chain_list", IMAGES)
def chain_list():
    class Net(chainer.ChainList):
        """Layers are told apart by their class."""

        def forward(self, x):
            for layer in self:
                x = layer(x)
                if isinstance(layer, L.BatchNormalization):
                    x = F.relu(x)
            return x

    return Net(L.Convolution2D(3, 6, 3), L.BatchNormalization(6), L.Convolution2D(6, 6, 3), L.BatchNormalization(6))
