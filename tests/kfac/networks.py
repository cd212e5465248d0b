"""Small networks of plain Chainer for the tests of K-FAC, and batches for them."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

SIZE = (8, 3, 6, 6)  # of a batch of images
CLASSES = 4


class Added(chainer.Chain):
    """conv - BN - ReLU - conv - BN - add - ReLU."""

    def __init__(self, **options):
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(None, 8, 3, pad=1, nobias=True)
            self.bn1 = L.BatchNormalization(8)
            self.second = L.Convolution2D(8, 8, 3, pad=1, nobias=True)
            self.bn2 = L.BatchNormalization(8)

    def forward(self, x):
        h = F.relu(self.bn1(self.first(x)))
        return F.relu(self.bn2(self.second(h)) + h)


def conv(outputs, size, **options):
    """Returns a convolution with a number of outputs; the rest as of the link."""
    return L.Convolution2D(None, outputs, size, **options)


#: Builders of the layers before the last one, which is linear.
NETWORKS = {
    "linear": lambda: [L.Linear(None, 6), F.tanh],
    "linear without bias": lambda: [L.Linear(None, 6, nobias=True), F.tanh],
    "conv": lambda: [conv(4, 3), F.tanh],
    "conv without bias": lambda: [conv(4, 3, pad=1, nobias=True), F.relu],
    "stride": lambda: [conv(4, 3, stride=2, pad=1), F.tanh],
    "oblong": lambda: [conv(4, (3, 2), stride=(1, 2), pad=(2, 1)), F.tanh],
    "dilate": lambda: [conv(4, 3, pad=2, dilate=2), F.tanh],
    "groups": lambda: [conv(8, 1), conv(8, 3, pad=1, groups=4), F.tanh],
    "depthwise": lambda: [conv(6, 3, pad=1, groups=3, nobias=True), F.tanh],
    "conv+BN": lambda: [conv(8, 3, nobias=True), L.BatchNormalization(8)],
    "conv+BN+ReLU": lambda: [conv(8, 3, nobias=True), L.BatchNormalization(8), F.relu],
    "conv with bias, BN": lambda: [conv(8, 3), F.tanh, L.BatchNormalization(8), F.relu, conv(4, 1)],
    "BN alone": lambda: [L.BatchNormalization(3), F.tanh],
    "BN of rows": lambda: [L.Linear(None, 6), L.BatchNormalization(6), F.relu],
    "add": lambda: [Added(), conv(4, 3)],
    "two of all": lambda: [conv(8, 3, pad=1, nobias=True), L.BatchNormalization(8), F.relu, Added(), conv(4, 3)],
}


def build(name, seed=0, last=CLASSES):
    """Returns a network, initialized."""
    np.random.seed(seed)
    model = chainer.Sequential(*NETWORKS[name](), L.Linear(None, last))
    model(batch(0)[0])
    random = np.random.RandomState(seed)
    for path, param in model.namedparams():
        if path.endswith(("gamma", "beta", "/b")):
            param.array += random.normal(0, 0.3, param.shape).astype(np.float32)
    return model


def batch(number, size=SIZE):
    """Returns images and labels."""
    random = np.random.RandomState(1000 + number)
    x = random.normal(size=size).astype(np.float32)
    return x, random.randint(0, CLASSES, len(x)).astype(np.int32)


def loss(model, x, t):
    """The mean of the cross entropy."""
    return F.softmax_cross_entropy(model(x), t)
