"""The zoo: networks that are not image classifiers, or only in part: sequences, generators, losses of their own."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from tests.zoo.cases import case, images, itself, own


def words(batch, length, vocabulary=11, classes=3):
    return lambda random: (
        random.randint(0, vocabulary, (batch, length)).astype(np.int32),
        random.randint(0, classes, batch).astype(np.int32),
    )


@case("lstm_classifier", words(4, 6), itself)
def lstm_classifier():
    class Net(chainer.Chain):
        """State is kept by the link."""

        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.embed = L.EmbedID(11, 8)
                self.l1 = L.LSTM(8, 10)
                self.l2 = L.LSTM(10, 10)
                self.fc = L.Linear(10, 3)

        def forward(self, x):
            self.l1.reset_state()
            self.l2.reset_state()
            for step in range(x.shape[1]):
                h = self.l2(F.dropout(self.l1(self.embed(x[:, step])), 0.25))
            return self.fc(h)

    return L.Classifier(Net())


@case("stateless_lstm", words(4, 5), itself)
def stateless_lstm():
    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.embed = L.EmbedID(11, 8, ignore_label=-1)
                self.cell = L.StatelessLSTM(8, 10)
                self.gru = L.StatelessGRU(10, 6)
                self.norm = L.LayerNormalization(6)
                self.fc = L.Linear(6, 3)

        def forward(self, x):
            c = h = g = None
            for step in F.separate(F.transpose(self.embed(x), (1, 0, 2)), axis=0):
                c, h = self.cell(c, h, step)
                g = self.gru(g, h) if g is not None else F.tanh(h[:, :6])
            return self.fc(self.norm(g))

    return L.Classifier(Net())


@case("sequences_of_any_length", lambda random: [random.randint(0, 11, n).astype(np.int32) for n in (5, 2, 4)])
class SequencesOfAnyLength(chainer.Chain):
    """As examples/text_classification: a list of arrays, a stack of LSTMs in both directions."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(11, 6)
            self.rnn = L.NStepBiLSTM(2, 6, 5, 0.0)
            self.fc = L.Linear(10, 3)

    def forward(self, *xs):
        sections = np.cumsum([len(x) for x in xs[:-1]])
        embedded = F.split_axis(self.embed(F.concat(xs, axis=0)), sections, 0)
        h, c, ys = self.rnn(None, None, list(embedded))
        return self.fc(F.concat([h[2], h[3]], axis=1)), c, ys


@case("mlp", images(6, 12))
def mlp():
    return chainer.Sequential(
        L.Linear(None, 16), L.BatchNormalization(16), F.relu, L.Linear(16, 8), F.sigmoid, L.LayerNormalization(8)
    )


@case("word_vectors", lambda random: (random.randint(0, 11, (3, 9)).astype(np.int32),))
class WordVectors(chainer.Chain):
    """A convolution over words: its images are (N, 1, length, width)."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(11, 6)
            self.convs = chainer.ChainList(*(L.Convolution2D(1, 4, (k, 6)) for k in (2, 3)))
            self.bilinear = L.Bilinear(4, 4, 3)
            self.highway = L.Highway(8)

    def forward(self, x):
        h = self.embed(x)[:, None]
        pooled = [F.max(F.relu(conv(h)), axis=(2, 3)) for conv in self.convs]
        return self.bilinear(*pooled), self.highway(F.concat(pooled))


class VAE(chainer.Chain):
    """As examples/vae: its loss is a method."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(1, 6, 4, stride=2, pad=1, nobias=True)
            self.bn = L.BatchNormalization(6)
            self.mu = L.Linear(None, 3)
            self.ln_var = L.Linear(None, 3)
            self.ld = L.Linear(3, 6 * 4 * 4)
            self.dbn = L.BatchNormalization(6 * 4 * 4)
            self.out = L.Deconvolution2D(6, 1, 4, stride=2, pad=1)

    def forward(self, x, sigmoid=True):
        return self.decode(self.encode(x)[0], sigmoid)

    def encode(self, x):
        h = F.tanh(self.bn(self.conv(x)))
        return self.mu(h), self.ln_var(h)

    def decode(self, z, sigmoid=True):
        h = F.relu(self.dbn(self.ld(z)))
        h = self.out(F.reshape(h, (-1, 6, 4, 4)))
        return F.sigmoid(h) if sigmoid else h


@case("vae", lambda random: random.uniform(0, 1, (4, 1, 8, 8)).astype(np.float32), own, kept=("loss", "reconstruction"))
class VAELoss(chainer.Chain):
    """The loss as the model's call, with a sample from a normal distribution."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.vae = VAE()

    def forward(self, x):
        mu, ln_var = self.vae.encode(x)
        self.reconstruction = 0
        for _ in range(2):
            z = F.gaussian(mu, ln_var)
            h = self.vae.decode(z, sigmoid=False)
            x_array = x.array if isinstance(x, chainer.Variable) else x
            self.reconstruction += F.bernoulli_nll(x_array, h) / (2 * len(x))
        self.loss = self.reconstruction + F.gaussian_kl_divergence(mu, ln_var) / len(x)
        chainer.report({"loss": self.loss}, observer=self)
        return self.loss


class Generator(chainer.Chain):
    """As examples/dcgan."""

    def __init__(self):
        super().__init__()
        w = chainer.initializers.Normal(0.2)
        with self.init_scope():
            self.l0 = L.Linear(6, 8 * 2 * 2, initialW=w)
            self.bn0 = L.BatchNormalization(8 * 2 * 2)
            self.dc1 = L.Deconvolution2D(8, 6, 4, 2, 1, initialW=w)
            self.bn1 = L.BatchNormalization(6)
            self.dc2 = L.Deconvolution2D(6, 3, 4, 2, 1, initialW=w)

    def forward(self, z):
        h = F.reshape(F.relu(self.bn0(self.l0(z))), (len(z), 8, 2, 2))
        h = F.relu(self.bn1(self.dc1(h)))
        return F.sigmoid(self.dc2(h))


class Discriminator(chainer.Chain):
    """As examples/dcgan: leaky ReLUs."""

    def __init__(self):
        super().__init__()
        w = chainer.initializers.Normal(0.2)
        with self.init_scope():
            self.c0 = L.Convolution2D(3, 6, 3, 1, 1, initialW=w)
            self.c1 = L.Convolution2D(6, 8, 4, 2, 1, initialW=w)
            self.bn1 = L.BatchNormalization(8, use_gamma=False)
            self.l4 = L.Linear(None, 1, initialW=w)

    def forward(self, x):
        h = F.leaky_relu(self.c0(x))
        h = F.leaky_relu(self.bn1(self.c1(h)))
        return self.l4(h)


@case("dcgan", lambda random: (images(4, 6)(random), images(4, 3, 8, 8)(random)))
class DCGAN(chainer.Chain):
    """The discriminator's normalization sees two batches in one call."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.gen = Generator()
            self.dis = Discriminator()

    def forward(self, z, x):
        fake = self.gen(z)
        y_fake, y_real = self.dis(fake), self.dis(x)
        return {
            "dis": F.sum(F.softplus(-y_real)) / 4 + F.sum(F.softplus(y_fake)) / 4,
            "gen": F.sum(F.softplus(-y_fake)) / 4,
        }
