"""Runs of a small converted network, captured and eager ones, on the stand-in device with graphs or on a GPU."""

import functools
import itertools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.functions import reset_dropout
from models import resnet
from tests.stand_ins.capture_sides import HOST
from tests.stand_ins.device_runs import state_of

CLASSES = 10
POISONED = {9, 14}
FIRST_REPLAY = 5  # after three eager steps, and two in which the graph is compared with an eager step
REQUIRED = {"required": True}  # arguments for mixprec.capture


class Network(chainer.Chain):
    """A ResNet of two BasicBlocks: few kinds of layers, as cuDNN looks for engines for each of them."""

    def __init__(self, dropout):
        super().__init__()
        self._dropout = dropout
        with self.init_scope():
            self.conv1 = resnet.convolution(3, 8, 7, stride=2)
            self.bn1 = resnet.batch_normalization(8)
            widths = (8, 8, 16)
            self.stages = chainer.Sequential(
                *(
                    resnet.BasicBlock(before, channels, 1 if place == 0 else 2)
                    for place, (before, channels) in enumerate(itertools.pairwise(widths))
                )
            )
            self.fc = L.Linear(16, CLASSES)

    def forward(self, x):
        h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, pad=1, cover_all=False)
        h = resnet.global_average(self.stages(h))
        return self.fc(F.dropout(h, self._dropout) if self._dropout else h)


def batch(step, size=4):
    """Images and labels on the host; those of poisoned steps give gradients that are not finite."""
    random = np.random.RandomState(step)
    x = random.normal(size=(size, 3, 16, 16)).astype(np.float32)
    if step in POISONED:
        x[0, 0, 0, 0] = np.inf
    return x, random.randint(0, CLASSES, size).astype(np.int32)


def new_rule(name):
    rule = getattr(mixprec if hasattr(mixprec, name) else optimizers, name)()
    rate = "alpha" if hasattr(rule, "alpha") else "lr"
    return rule, rate


class Run:
    """A model, its optimizer, and what they have reported.

    Args:
        capture: arguments for :func:`mixprec.capture`, or ``None`` for an eager run.
        rule: name of the optimizer.
        dropout: ratio.
        compute: dtype.
        keep_float32: links that stay in float32.
        network: class of the network.
        classifier: function from a network to a classifier.
        lossfun: takes the model and arguments; ``None`` for the model itself.
        side: of :mod:`tests.stand_ins.capture_sides`.
        wishes: further arguments of the optimizer.
    """

    def __init__(
        self,
        capture=None,
        rule="MomentumSGD",
        dropout=0.0,
        compute="float16",
        keep_float32=(),
        network=Network,
        classifier=L.Classifier,
        lossfun=None,
        side=HOST,
        **wishes,
    ):
        np.random.seed(0)
        reset_dropout()
        model = classifier(network(dropout))
        mixprec.convert(model, np.zeros((2, 3, 16, 16), np.float32), compute=compute, keep_float32=keep_float32)
        self.model = side.send_link(model)
        self._side = side
        inner, self._rate = new_rule(rule)
        scale = mixprec.DynamicLossScale(init=2.0**7, interval=5)
        self.optimizer = mixprec.MixedPrecisionOptimizer(inner, **{"loss_scale": scale, **wishes}).setup(self.model)
        self.optimizer.add_hook(optimizer_hooks.WeightDecay(1e-4))
        self.first_rate = getattr(inner, self._rate)
        if lossfun is None:
            self._lossfun = self.model
        else:
            self._lossfun = lambda *arguments: lossfun(self.model, *arguments)
        self.step = None
        if capture is not None:
            self.step = mixprec.capture(self.optimizer, None if lossfun is None else self._lossfun, **capture)
        self.reporter = chainer.Reporter()
        self.reporter.add_observer("main", self.model)
        self.observed = []
        np.random.seed(1)
        reset_dropout()

    def run(self, steps, size=4, send=np.copy):
        """Runs steps on arrays that ``send`` makes of those of the host, each with another learning rate."""
        for number in steps:
            self.set_rate(number)
            self.once(*map(send if self.step else self._side.send, batch(number, size)))
        return self

    def set_rate(self, number):
        """Sets the learning rate for a step."""
        setattr(self.optimizer, self._rate, self.first_rate / (1 + number))

    def once(self, *arguments):
        """Runs a step."""
        observation = {}
        with self.reporter.scope(observation):
            if self.step is None:
                losses = []

                def lossfun(*arguments):
                    losses.append(self._lossfun(*arguments))
                    return losses[-1]

                with self._side.eagerly():
                    self.optimizer.update(lossfun, *arguments)
                loss = losses[0]
            else:
                loss = self.step(*arguments)
        self.observed.append({**observation, "returned": loss})

    def evaluate(self, function, *arguments):
        """Calls a function that evaluates the model, and returns what it returns and reports."""
        observation = {}
        with self.reporter.scope(observation):
            loss = function(*arguments)
        found = {**observation, "returned": loss}
        return {name: self._received(value) for name, value in found.items()}

    def save(self, folder):
        """Writes model and optimizer to files."""
        serializers.save_npz(folder / "model.npz", self.model)
        serializers.save_npz(folder / "optimizer.npz", self.optimizer)

    def load(self, folder):
        """Goes on from files."""
        serializers.load_npz(folder / "model.npz", self.model)
        serializers.load_npz(folder / "optimizer.npz", self.optimizer)
        self._side.send_states(self.model)

    def results(self):
        """Everything that the steps have left and reported, as arrays of NumPy by name."""
        found = {
            f"step {number} {name}": value
            for number, values in enumerate(self.observed)
            for name, value in values.items()
        }
        found = {name: self._received(value) for name, value in found.items()}
        found |= self.gradients()
        for name, param in self.model.namedparams():
            found[f"{name} in its dtype"] = self._received(param.array)
        found |= {name: np.array(getattr(self.optimizer, name)) for name in ("t", "skipped", "loss_scale")}
        return {**found, **state_of(self.optimizer)}

    def gradients(self):
        """Those of the last step, as arrays of NumPy by name."""
        gradients = {f"gradient of {name}": param.grad for name, param in self.model.namedparams()}
        return {name: self._received(grad) for name, grad in gradients.items() if grad is not None}

    def kept(self):
        """The variables of the last step that the model keeps, as arrays of NumPy by name."""
        return {name: self._received(getattr(self.model, name)) for name in ("y", "loss", "accuracy")}

    def _received(self, value):
        return self._side.receive(chainer.as_array(value))


@functools.cache
def eager(steps, **settings):
    """Returns the results of an eager run of so many steps."""
    return Run(None, **settings).run(range(steps)).results()


def assert_same(found, expected):
    """Asserts that a run has left the same bits as another one, or as these results."""
    found = found.results()
    expected = expected.results() if isinstance(expected, Run) else expected
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        np.testing.assert_array_equal(found[name].view(np.ndarray).tobytes(), value.tobytes(), err_msg=name)
