"""Habits of networks on sequences: recurrence, padding, attention, trees, and their losses."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizer_hooks, optimizers

from tests.habits.parts import Net, mlp, train
from tests.habits.running import STEPS, T, X, habit

WORDS = np.array([[1, 2, 3, 4, 0], [2, 5, 1, -1, -1], [3, 3, -1, -1, -1]], np.int32)
LENGTHS = [5, 3, 2]
SEQUENCES = [np.ascontiguousarray(np.resize(X, (5, 4))[:length]) for length in LENGTHS]


@habit()
def ctc(run):
    """Five steps, a batch of six."""
    net, t = mlp(4), np.array([[1, 2], [2, 3], [3, 3]] * 2, np.int32)
    steps = [np.roll(X, shift, axis=0) for shift in range(5)]
    optimizer = run.setup(optimizers.SGD(0.1), net)
    return run.fit(optimizer, lambda: F.connectionist_temporal_classification([net(x) for x in steps], t, 0))


@habit()
def conditional_random_field(run):
    def forward(self, *xs):
        if chainer.config.train:
            return self.crf([self.l(x) for x in xs], ys, transpose=True)
        return self.crf.argmax([self.l(x) for x in xs], transpose=True)

    ys = [np.arange(length, dtype=np.int32) % 3 for length in LENGTHS]
    net = Net(forward, l=L.Linear(4, 3), crf=L.CRF1d(3))
    losses = train(run, net, *SEQUENCES)
    with chainer.using_config("train", False):
        return [losses, net(*SEQUENCES)]


@habit()
def recurrence_over_sequences_of_different_lengths(run):
    def forward(self, *xs):
        hs, _, ys = self.lstm(None, None, list(xs))
        h, _ = self.gru(None, ys)
        return F.softmax_cross_entropy(self.out(F.concat((hs[-1], h[-1], h[0]))), T[:3])

    links = {"lstm": L.NStepLSTM(2, 4, 5, 0.0), "gru": L.NStepBiGRU(1, 5, 3, 0.0), "out": L.Linear(11, 3)}
    return train(run, Net(forward, **links), *SEQUENCES, steps=2)


@habit()
def state_that_is_reset_and_cut(run):
    """Truncated backpropagation through time, as in Chainer's PTB."""
    net = chainer.Sequential(L.EmbedID(6, 4, ignore_label=-1), L.LSTM(4, 8), L.StatefulGRU(8, 4), L.Linear(4, 6))
    optimizer, losses = run.setup(optimizers.SGD(0.3), net, [optimizer_hooks.GradientClipping(1)]), []
    for _ in range(STEPS):
        net[1].reset_state()
        net[2].reset_state()
        for start in (0, 2):
            loss = sum(F.softmax_cross_entropy(net(WORDS[:, i]), WORDS[:, i + 1]) for i in range(start, start + 2))
            net.cleargrads()
            run.backward(optimizer, loss)
            loss.unchain_backward()
            optimizer.update()
            losses.append(loss)
    return [*losses, net[1].h]


@habit()
def state_that_is_carried_by_hand(run):
    def forward(self, *xs):
        c = h = None
        for x in xs:
            c, h = self.cell(c, h, self.embed(x))
        return self.out(h)

    net = Net(forward, embed=L.EmbedID(6, 4, ignore_label=-1), cell=L.StatelessLSTM(4, 5), out=L.Linear(5, 3))
    optimizer = run.setup(optimizers.NesterovAG(0.1), net)
    return run.fit(optimizer, lambda: F.softmax_cross_entropy(net(*WORDS.T), T[:3]))


@habit()
def attention_over_padding(run):
    valid = WORDS >= 0

    def forward(self, words):
        h = self.embed(words)
        q, k, v = F.split_axis(F.reshape(self.qkv(F.reshape(h, (15, 4))), (3, 5, 12)), 3, axis=2)
        scores = F.matmul(q, k, transb=True) * 4**-0.5
        allowed = np.broadcast_to(valid[:, None], scores.shape)
        weights = F.softmax(F.where(allowed, scores, np.full(scores.shape, -1e9, "f")), axis=2)
        h = self.norm(F.reshape(F.matmul(weights, v) + h, (15, 4)))
        return F.softmax_cross_entropy(self.out(h), np.where(valid, words, -1).ravel())

    links = {"embed": L.EmbedID(6, 4, ignore_label=-1), "qkv": L.Linear(4, 12, nobias=True)}
    return train(run, Net(forward, **links, norm=L.LayerNormalization(4), out=L.Linear(4, 6)), WORDS)


@habit()
def memory_network(run):
    def forward(self, words):
        m, c = (F.sum(F.reshape(e(words), (3, 5, 4)), axis=1) for e in (self.m, self.c))
        u = self.c(np.array([1, 2], np.int32))
        p = F.softmax(F.matmul(u, m, transb=True))
        return F.softmax_cross_entropy(self.out(u + F.matmul(p, c)), T[:2])

    m, c = (L.EmbedID(6, 4, ignore_label=-1) for _ in range(2))
    return train(run, Net(forward, m=m, c=c, out=L.Linear(4, 3)), WORDS)


@habit()
def trees(run):
    """The graph depends on the data, as in recursive networks."""

    def node(self, tree):
        if isinstance(tree, int):
            return self.embed(np.array([tree], np.int32))
        return F.tanh(self.join(F.concat([node(self, child) for child in tree])))

    def forward(self, *trees):
        return F.softmax_cross_entropy(self.out(F.concat([node(self, tree) for tree in trees], axis=0)), T[:3])

    net = Net(forward, embed=L.EmbedID(6, 4), join=L.Linear(8, 4), out=L.Linear(4, 3))
    return train(run, net, ((0, 1), 2), (3, (4, (5, 1))), (2, 2))


@habit()
def causal_and_dilated(run):
    """As in WaveNet: gates, dilations, residuals and skips."""

    def forward(self, x):
        skips = 0
        for place, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            h = gate(F.pad(x, ((0, 0), (0, 0), (2**place, 0), (0, 0)), "constant"))
            a, b = F.split_axis(h, 2, axis=1)
            h = out(F.tanh(a) * F.sigmoid(b))
            x, skips = x + h, skips + h
        return F.mean_squared_error(F.relu(skips)[:, :, :-1], x.array[:, :, 1:] * 0 + 0.5)

    gates = chainer.ChainList(*(L.DilatedConvolution2D(4, 8, (2, 1), dilate=(2**i, 1)) for i in range(2)))
    outs = chainer.ChainList(*(L.Convolution2D(4, 4, 1) for _ in range(2)))
    return train(run, Net(forward, gates=gates, outs=outs), np.resize(X, (2, 4, 6, 1)))


@habit()
def losses_with_weights_of_their_own(run):
    """Word2vec: losses that are links."""

    def forward(self, words):
        h = self.embed(words)
        return self.tree(h, words % 3) / 4 + self.sampled(h, words) / 4

    tree = L.BinaryHierarchicalSoftmax(4, L.BinaryHierarchicalSoftmax.create_huffman_tree({0: 3, 1: 2, 2: 1}))
    sampled = L.NegativeSampling(4, [1] * 6, 2)
    sampled.sampler.sample = lambda shape: np.resize(np.arange(6, dtype=np.int32), shape)
    return train(run, Net(forward, embed=L.EmbedID(6, 4), tree=tree, sampled=sampled), np.array([1, 3, 5], np.int32))
