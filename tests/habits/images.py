"""Habits of networks on images: links, hooks, losses and functions."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import link_hooks, optimizers

from tests.habits.parts import Net, train
from tests.habits.running import IMAGES, T, habit


def cnn(**norm):
    layers = L.Convolution2D(3, 8, 3, pad=1, nobias=True), L.BatchNormalization(8, **norm), F.relu
    return chainer.Sequential(*layers, L.Convolution2D(8, 8, 3, stride=2, nobias=True), F.relu, L.Linear(72, 3))


@habit()
def spectral_normalization(run):
    net = chainer.Sequential(
        L.Convolution2D(3, 4, 3).add_hook(link_hooks.SpectralNormalization()),
        F.leaky_relu,
        L.Linear(144, 3).add_hook(link_hooks.SpectralNormalization(n_power_iteration=2)),
    )
    return train(run, net, IMAGES)


@habit()
def array_of_a_result_is_written(run):
    def forward(self, x):
        h = self.c(x)
        h.array[:, 0] = 0
        h.array[...] += 0.5
        return self.l(F.relu(h))

    return train(run, Net(forward, c=L.Convolution2D(3, 4, 3), l=L.Linear(144, 3)), IMAGES)


@habit()
def methods_that_are_called_by_name(run):
    """Links, and functions of parameters, outside of ``model(x)``."""

    class Autoencoder(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.c, self.l, self.bias = L.Convolution2D(3, 4, 3), L.Linear(144, 5), chainer.Parameter(0.1, (192,))

        def encode(self, x):
            return F.tanh(self.l(F.relu(self.c.forward(x))))

        def decode(self, z):
            h = F.relu(F.reshape(F.linear(z, self.l.W.T), (6, 4, 6, 6)))
            return F.deconvolution_2d(h, self.c.W)

    model = Autoencoder()
    optimizer = run.setup(optimizers.MomentumSGD(0.1), model)
    return run.fit(optimizer, lambda: F.mean_squared_error(model.decode(model.encode(IMAGES)), IMAGES))


@habit()
def ignored_labels_and_class_weights(run):
    net, t = cnn(), np.array([0, -1, 2, 0, -1, 1], np.int32)
    optimizer, weight = run.setup(optimizers.SGD(0.1), net), np.array([1, 2, 0.5], "f")

    def loss():
        y = net(IMAGES)
        each = F.softmax_cross_entropy(y, t, class_weight=weight, reduce="no")
        return F.softmax_cross_entropy(y, t, normalize=False, ignore_label=-1) + F.mean(each)

    return [*run.fit(optimizer, loss), F.accuracy(net(IMAGES), t, ignore_label=-1)]


@habit(roundings=32)
def batch_normalization_in_its_variants(run):
    net = chainer.Sequential(
        *(L.Convolution2D(3, 4, 3, nobias=True), L.BatchNormalization(4, use_gamma=False), F.relu),
        *(L.Convolution2D(4, 4, 3), L.BatchNormalization(4, decay=0.5, eps=1e-3, use_beta=False), F.leaky_relu),
        *(L.Linear(64, 8), L.BatchNormalization(8, initial_avg_mean=0.1), F.tanh, L.Linear(8, 3)),
    )
    losses = train(run, net, IMAGES)
    with chainer.using_config("train", False):
        return [*losses, net(IMAGES)]


@habit()
def batch_normalization_that_is_frozen_or_finetuned(run):
    net = cnn()
    optimizer = run.setup(optimizers.SGD(0.1), net)

    def frozen():
        with chainer.using_config("train", False):
            return F.softmax_cross_entropy(net(IMAGES), T)

    losses = run.fit(optimizer, frozen)
    net[1].start_finetuning()
    tail = chainer.Sequential(*net[3:])

    def finetuned():
        h = F.relu(net[1](net[0](IMAGES), finetune=True))
        return F.softmax_cross_entropy(tail(h), T)

    return losses + run.fit(optimizer, finetuned) + run.fit(optimizer, frozen)


@habit()
def decoder_with_skips(run):
    """As a U-Net: pooled, brought back by a deconvolution and by interpolation, concatenated."""

    def forward(self, x):
        a = F.relu(self.c1(x))
        b = F.relu(self.c2(F.max_pooling_2d(a, 2)))
        up = F.concat((self.d(b), F.unpooling_2d(b, 2, outsize=(8, 8)), F.resize_images(b, (8, 8)), a))
        return F.mean_squared_error(self.out(F.pad(up, ((0, 0), (0, 0), (1, 1), (1, 1)), "constant")), x)

    links = {"c1": L.Convolution2D(3, 4, 3, pad=1), "c2": L.Convolution2D(4, 4, 3, pad=1)}
    links |= {"d": L.Deconvolution2D(4, 4, 2, stride=2), "out": L.Convolution2D(16, 3, 3)}
    return train(run, Net(forward, **links), IMAGES)


@habit(roundings=32)
def style_of_fixed_features(run):
    """Gram matrices of a network that is not trained; the image is."""
    features = run.convert(chainer.Sequential(L.Convolution2D(3, 4, 3), F.relu, L.Convolution2D(4, 4, 3)))
    features.disable_update()
    image = chainer.Link()
    with image.init_scope():
        image.x = chainer.Parameter(IMAGES[:1].copy())

    def gram(x):
        f = F.reshape(features(x), (4, -1))
        return F.matmul(f, f, transb=True) / f.shape[1]

    style = gram(IMAGES[1:2]).array
    optimizer = run.setup(optimizers.Adam(0.05), image)
    return run.fit(optimizer, lambda: F.mean_squared_error(gram(image.x), style))
