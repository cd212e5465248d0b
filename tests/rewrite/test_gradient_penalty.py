"""Gradient penalties of WGAN-GP and PGGAN in FP16 with ``layout="nchw"``, against plain Chainer in FP32."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec

X = np.random.RandomState(0).rand(4, 3, 8, 8).astype("f")


class Critic(chainer.Chain):
    """The last blocks of PGGAN's discriminator: equalized learning rates, standard deviation over the batch."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(3, 8, 3, pad=1)
            self.last = L.Convolution2D(9, 8, 4)
            self.out = L.Linear(8, 1)

    def forward(self, x):
        h = F.leaky_relu(self.first(x * 1.5))
        h = F.average_pooling_2d(h, 2)
        deviation = F.mean(F.sqrt(F.mean((h - F.broadcast_to(F.mean(h, axis=0), h.shape)) ** 2, axis=0) + 1e-4))
        h = F.concat((h, F.broadcast_to(deviation, (len(h), 1, *h.shape[2:]))))
        return self.out(F.leaky_relu(self.last(h)))


def _step(critic, optimizer):
    """Returns the loss of one step and its gradients, without the loss scale."""
    x = chainer.Variable(X)
    y = critic(x)
    (gradient,) = chainer.grad([y], [x], enable_double_backprop=True)
    loss = F.mean(y) + 10 * F.mean((F.sqrt(F.batch_l2_norm_squared(gradient) + 1e-6) - 1) ** 2)
    critic.cleargrads()
    scale = getattr(optimizer, "loss_scale", 1.0)
    (loss if scale == 1.0 else optimizer.scale_loss(loss)).backward()
    gradients = {name: param.grad.astype("f") / scale for name, param in critic.namedparams()}
    optimizer.update()
    return float(loss.array), gradients


@pytest.mark.parametrize("compute", ["float16", "float32"])
def test_a_critic_trains_as_in_plain_chainer(compute):
    """One rounding of a weight or an activation is 2^-11; some ten of them lie one after the other."""
    found = []
    for converted in (False, True):
        np.random.seed(1)
        critic = Critic()
        optimizer = chainer.optimizers.Adam(1e-3, 0.0, 0.99)
        if converted:
            optimizer = mixprec.MixedPrecisionOptimizer(optimizer, 64.0)
        optimizer.setup(critic)
        if converted:
            mixprec.convert(critic, X, compute=compute, layout="nchw")
        found.append([_step(critic, optimizer) for _ in range(3)])
    tolerance = 2.0**-7 if compute == "float16" else 2.0**-18
    for (loss, gradients), (expected, expected_gradients) in zip(found[1], found[0], strict=True):
        assert abs(loss - expected) <= tolerance * abs(expected)
        for name, gradient in expected_gradients.items():
            assert np.linalg.norm(gradients[name] - gradient) <= tolerance * np.linalg.norm(gradient), name
    assert optimizer.skipped == 0
