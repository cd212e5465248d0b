"""Captured training of links that keep states from one call to the next, as in truncated back-propagation."""

import copy
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.backends.cudnn import settings
from mixprec.base import announcements
from mixprec.functions import reset_dropout
from mixprec.graph_capture import CaptureError, capture_evaluation
from tests.cases import first
from tests.graph_capture.captured_runs import FIRST_REPLAY, REQUIRED
from tests.stand_ins import graph_array
from tests.stand_ins.capture_sides import HOST, device, host  # noqa: F401  (fixtures)

WORDS, UNITS, STEPS, WINDOWS = 11, 8, 3, 20


class Own(chainer.Chain):
    """Keeps an array, and what it was before: the two change places."""

    def __init__(self, size, units):
        super().__init__()
        self.reset_state()
        with self.init_scope():
            self.w, self.u = L.Linear(size, units), L.Linear(2 * units, units)

    def reset_state(self):
        self.array, self.before = None, None

    def forward(self, x):
        h = self.w(x)
        if self.array is not None:
            h += self.u(F.concat([self.array, self.array if self.before is None else self.before]))
        h = F.tanh(h)
        self.before, self.array = self.array, h.array
        return h


class Language(chainer.Chain):
    """The network of Chainer's example ``ptb``, with a linear layer in place of the embedding."""

    def __init__(self, kind):
        super().__init__()
        with self.init_scope():
            self.embed, self.out = L.Linear(WORDS, UNITS), L.Linear(UNITS, WORDS)
            self.rnn1, self.rnn2 = kind(UNITS, UNITS), kind(UNITS, UNITS)

    def reset_state(self):
        self.rnn1.reset_state()
        self.rnn2.reset_state()

    def forward(self, x):
        return self.out(F.dropout(self.rnn2(self.rnn1(self.embed(x))), 0.3))


class Training:
    """Windows of a text; eager ones are written as in the example."""

    def __init__(self, capture=None, kind=L.LSTM, compute="float16", send=graph_array.array):
        np.random.seed(0)
        reset_dropout()
        self.model, self.send = L.Classifier(Language(kind)), send
        if compute:
            mixprec.convert(self.model, compute=compute)
            graph_array.send(self.model)
        scale = mixprec.DynamicLossScale(init=2.0**18, interval=4, growth=4.0)  # some windows overflow
        self.optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam(), loss_scale=scale).setup(self.model)
        self.step = None if capture is None else mixprec.capture(self.optimizer, self.lossfun, **capture)
        np.random.seed(1)
        reset_dropout()
        self.network, self.losses = self.model.predictor, []

    def lossfun(self, words, targets):
        return sum(self.model(x, t) for x, t in zip(words, targets, strict=True))

    def window(self, number, size=4):
        words = np.random.RandomState(number).randint(0, WORDS, (STEPS + 1, size)).astype(np.int32)
        return self.send(np.eye(WORDS, dtype=np.float32)[words[:-1]]), self.send(words[1:])

    def run(self, numbers, size=4):
        for number in numbers:
            if self.step is not None:
                loss = self.step(*self.window(number, size))
            else:
                with HOST.eagerly():
                    loss = self.lossfun(*self.window(number, size))
                    self.model.cleargrads()
                    self.optimizer.scale_loss(loss).backward()
                    loss.unchain_backward()
                    self.optimizer.update()
            self.losses.append(loss.array)
        return self

    def results(self):
        """The bits of losses, parameters and states."""
        links = self.network.rnn1, self.network.rnn2
        states = [getattr(link, name, None) for link in links for name in ("c", "h", "array", "before")]
        arrays = [*self.losses, *(param.array for param in self.model.params())]
        arrays += [chainer.as_array(state) for state in states if state is not None]
        return [np.array(array).tobytes() for array in arrays], self.optimizer.t, self.optimizer.skipped


def zeros(shape, dtype):
    array = graph_array.new(shape, dtype)
    array[...] = 0
    return array


@pytest.fixture(autouse=True)
def stand_in(host, monkeypatch):  # noqa: F811
    monkeypatch.setattr(announcements, "_said", set())
    for kind in (L.LSTM, L.StatefulPeepholeLSTM):  # zeros of NumPy are on the host
        monkeypatch.setattr(kind, "xp", types.SimpleNamespace(zeros=zeros), raising=False)


def beside_eager(program, capture=REQUIRED, **options):
    """Runs a program eagerly and captured; returns the captured training."""
    expected, captured = (Training(each, **options) for each in (None, capture))
    for training in (expected, captured):
        reset_dropout()
        np.random.seed(1)
        program(training)
    assert captured.results() == expected.results()
    assert captured.optimizer.skipped > 0 or captured.network.embed.W.dtype != np.float16
    return captured


KINDS = [
    (L.LSTM, "float16", True),
    (L.StatefulGRU, "bfloat16", True),
    (Own, "float16", True),
    (L.StatefulPeepholeLSTM, "float16", False),
    (L.GRU, "float16", False),
]


@pytest.mark.parametrize(("kind", "compute", "bitwise"), first(3, KINDS))
def test_windows_of_two_epochs(kind, compute, bitwise):
    """The first window of an epoch begins without states, which leaves the graph of the others as it is."""

    def program(training):
        settings.configure(deterministic=bitwise)
        for epoch in range(2):
            training.network.reset_state()
            training.run(range(epoch, epoch + WINDOWS // 2))

    captured = beside_eager(program, kind=kind, compute=compute)
    assert captured.step.replays >= WINDOWS - FIRST_REPLAY - 2  # the second epoch's first, one that overflows
    assert captured.step.why_not is None


def test_epochs_of_two_windows():
    """Then the first windows get a graph, too."""

    def program(training):
        for number in range(WINDOWS):
            if number % 2 == 0:
                training.network.reset_state()
            training.run([number])

    captured = beside_eager(program)
    of_first, of_second = sorted(captured.step.report().split("\n"))
    assert of_second.endswith("(3, 4) int32: 3 eager calls, then a graph that was launched 6 times")
    assert "(3, 4) int32, c of /predictor/rnn1 None, h of /predictor/rnn1 None, c of" in of_first
    assert of_first.endswith("then a graph that was launched 4 times")


def set_state(rnn, *states):
    """As the example restores states."""
    rnn.set_state(*(chainer.Variable(graph_array.array(np.full((4, UNITS), x, np.float16))) for x in states))


def write(rnn1, rnn2):
    rnn1.h.array[0] = 0.5
    rnn1.h, rnn2.h = rnn2.h, rnn1.h
    rnn2.c.array = rnn2.c.array * np.float16(0.5)


def evaluate(training):
    """With a copy, and with the model itself, whose states come back."""
    rnns = training.network.rnn1, training.network.rnn2
    states = [(rnn.c, rnn.h) for rnn in rnns]
    with HOST.eagerly(), chainer.using_config("train", False), chainer.no_backprop_mode():
        for model in (copy.deepcopy(training.model), training.model.copy(), training.model):
            model.predictor.reset_state()
            training.losses += [model(x, t).array for x, t in zip(*training.window(99, 2), strict=True)]
    for rnn, state in zip(rnns, states, strict=True):
        rnn.set_state(*state)


CHANGES = {
    "set": lambda training: set_state(training.network.rnn1, 0.5, -0.5),
    "written": lambda training: write(training.network.rnn1, training.network.rnn2),
    "evaluated": evaluate,
}


@pytest.mark.parametrize("change", first(3, CHANGES))
def test_a_launch_reads_the_states_that_the_user_has_left(change):
    def program(training):
        for number in range(12):
            CHANGES[change](training) if number % 3 == 2 else None
            training.run([number])

    assert beside_eager(program).step.replays >= 12 - FIRST_REPLAY - 2


def test_states_of_other_shapes():
    """Smaller batches go on with a part of the states, which is another graph; with states of their own, a third one."""

    def program(training):
        for round in range(8):
            training.run([round, round + 10])
            training.run([round], size=3)
            if round > 5:
                training.network.reset_state()
                training.run(range(3), size=2)
                training.network.reset_state()

    assert beside_eager(program, {}).step.replays >= 8


def test_a_state_that_the_user_has_computed():
    """The backward pass goes on behind it, and a graph would not."""

    def program(training):
        for number in range(9):
            if number == 7:
                with HOST.eagerly():
                    rnn = training.network.rnn1
                    rnn.set_state(F.flip(chainer.Variable(rnn.c.array), 0), rnn.h)
            training.run([number])
            if number == 7:
                found.append(training.step and training.step.why_not)

    found = []
    assert beside_eager(program, {}).step.replays == 2
    assert found[1].startswith("c of /predictor/rnn1 is a computed variable")
    with pytest.raises(CaptureError, match="c of /predictor/rnn1"):
        beside_eager(program)


def test_an_evaluation():
    """Captured, it goes on from the states of the last call, and begins where the user resets them."""
    found = []
    for captures in (False, True):
        training = Training()
        call = capture_evaluation(training.model, **REQUIRED) if captures else training.model
        found.append([])
        for number in range(24):
            if number in (0, 13) or number > 16:
                training.network.reset_state()
            words, targets = training.window(number)
            with HOST.eagerly(), chainer.using_config("train", False), chainer.no_backprop_mode():
                found[-1].append(graph_array.receive(call(words[0], targets[0]).array).item())
    assert found[0] == found[1]
    assert call.replays >= 10


def test_without_a_gpu_a_step_ends_the_backward_pass():
    expected, captured = (Training(each, L.StatefulGRU, None, np.array).run(range(4)) for each in (None, {}))
    assert captured.results() == expected.results()
