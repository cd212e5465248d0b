"""Habits of networks on vectors: parameters, masks, results, losses and functions of one's own."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizers

from tests.habits.parts import Net, train
from tests.habits.running import T, X, habit

MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]] * 2, bool)


@habit()
def tied_weights(run):
    """As in an autoencoder and a language model: one parameter in two places."""

    def forward(self, x, t):
        h = F.tanh(F.linear(x, self.l.W))
        return F.mean_squared_error(F.linear(h, self.l.W.T), x) + F.softmax_cross_entropy(
            F.linear(self.embed(t), self.embed.W), t
        )

    return train(run, Net(forward, l=L.Linear(4, 8), embed=L.EmbedID(3, 4)), X, T)


@habit()
def one_link_in_two_chains(run):
    shared = L.Linear(4, 4)
    net = Net(lambda self, x: self.b(self.a(x)))
    with net.init_scope():
        net.a = chainer.Sequential(shared, F.tanh)
        net.b = chainer.Sequential(shared, F.tanh, L.Linear(4, 3))
    return train(run, net, X, rule=optimizers.SGD(0.1))


@habit()
def masks_of_large_numbers(run):
    def forward(self, x):
        h = self.l(x)
        a = F.softmax(F.where(MASK, h, np.full(h.shape, -1e9, "f")))
        b = F.softmax(F.where(MASK, h, np.full(h.shape, -np.inf, "f")))
        return self.out(F.concat((a, b * x)))

    return train(run, Net(forward, l=L.Linear(4, 4), out=L.Linear(8, 3)), X)


@habit()
def results_in_a_dict(run):
    def forward(self, x):
        h = F.tanh(self.l(x))
        return {"features": h, "heads": [self.a(h), self.b(h)]}

    net = Net(forward, l=L.Linear(4, 8), a=L.Linear(8, 3), b=L.Linear(8, 1))

    def loss():
        y = net(X)
        assert all(each.dtype == np.float32 for each in (y["features"], *y["heads"]))
        penalty = F.mean(F.absolute(y["features"]))
        return F.softmax_cross_entropy(y["heads"][0], T) + F.mean(F.sigmoid(y["heads"][1])) + penalty

    return run.fit(run.setup(optimizers.SGD(0.2), net), loss)


@habit()
def siamese_and_triplet(run):
    net = chainer.Sequential(L.Linear(4, 8), F.tanh, L.Linear(8, 2))
    same = np.array([0, 1, 0, 1, 1, 0], np.int32)

    def loss():
        a, b, c = net(X), net(X[::-1].copy()), net(X**2)
        near = F.sqrt(F.batch_l2_norm_squared(a - c) + 1e-3)
        return F.contrastive(a, b, same) + F.triplet(a, b, c, margin=0.5) + F.mean(near)

    return run.fit(run.setup(optimizers.SGD(0.1), net), loss)


@habit()
def dropout_with_a_given_mask_and_in_evaluation(run):
    mask = np.random.RandomState(3).binomial(1, 0.5, (6, 8)).astype("f") * 2
    net = Net(lambda self, x, mask: self.b(F.dropout(F.relu(self.a(x)), mask=mask)), a=L.Linear(4, 8), b=L.Linear(8, 3))
    losses = train(run, net, X, mask)
    with chainer.using_config("train", False):
        return [*losses, net(X, None)]


@habit()
def repeated_and_copied_links(run):
    block = chainer.Sequential(L.Linear(4, 4), F.tanh)
    net = chainer.Sequential(
        block.repeat(2, mode="init"), block.copy(mode="share"), block.copy(mode="copy"), L.Linear(4, 3)
    )
    return train(run, net, X)


class Centered(chainer.Link):
    """Keeps a mean and a count, as links of users do."""

    def __init__(self):
        super().__init__()
        self.add_persistent("mean", np.zeros(4, "f"))
        self.add_persistent("count", 0)

    def forward(self, x):
        if chainer.config.train:
            self.count += 1
            self.mean += (chainer.as_array(x).mean(axis=0) - self.mean) / self.count
        return x - self.mean


@habit()
def persistent_values(run):
    return train(run, chainer.Sequential(L.Linear(4, 4), Centered(), F.relu, L.Linear(4, 3)), X)


@habit()
def variational_autoencoder(run):
    noise = np.random.RandomState(4).normal(size=(6, 2)).astype("f")
    target = (X > 0).astype("f")

    def forward(self, x):
        mean, ln_var = self.mean(x), self.ln_var(x)
        z = mean + F.exp(ln_var * 0.5) * noise
        return (F.bernoulli_nll(target, self.decoder(z)) + F.gaussian_kl_divergence(mean, ln_var)) / 6

    net = Net(forward, mean=L.Linear(4, 2), ln_var=L.Linear(4, 2), decoder=L.Linear(2, 4))
    return train(run, net, X, rule=optimizers.Adam(0.02))
