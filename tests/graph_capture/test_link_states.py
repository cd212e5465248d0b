"""Captured training of links that keep states from one step to the next, as in truncated back-propagation."""

import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.backends.cudnn import settings
from mixprec.graph_capture import capture_evaluation
from tests.cases import first
from tests.graph_capture.captured_runs import CLASSES, REQUIRED, Run, assert_same, batch
from tests.stand_ins import graph_array
from tests.stand_ins.capture_sides import HOST, device, host  # noqa: F401  (fixtures)


class Text(chainer.Chain):
    """Takes images for windows of a text of three words, and keeps arrays of its own, too."""

    def __init__(self, kind):
        super().__init__()
        self.last = self.before = None
        with self.init_scope():
            self.first, self.second, self.out = kind(256, 8), kind(8, 8), L.Linear(8, CLASSES)

    def reset_state(self):
        self.last = self.before = None
        self.first.reset_state()
        self.second.reset_state()

    def forward(self, x):
        for channel in range(3):
            h = self.second(self.first(x[:, channel].reshape(len(x), -1)))
        y = F.dropout(h, 0.3) if self.before is None else F.dropout(h, 0.3) + self.before
        self.last, self.before = h.array, self.last
        return self.out(y)

    def states(self):
        values = [vars(link).get(name) for link in self.links() for name in ("c", "h", "last", "before")]
        return [value for value in values if value is not None]


@pytest.fixture(autouse=True)
def stand_in(host, monkeypatch):  # noqa: F811
    xp = types.SimpleNamespace(zeros=lambda shape, dtype: np.zeros_like(graph_array.new(shape, dtype)))
    for kind in (L.LSTM, L.StatefulPeepholeLSTM):  # zeros of NumPy are on the host
        monkeypatch.setattr(kind, "xp", xp, raising=False)


def feed(run, numbers, size=4):
    """Runs windows; their states are results. Eager ones end the backward pass themselves."""
    for number in numbers:
        run.run([number], size)
        for name, state in enumerate(run.model.predictor.states()):
            if run.step is None and isinstance(state, chainer.Variable):
                state.unchain()
            run.observed[-1][f"state {name}"] = chainer.as_array(state).copy()


def beside_eager(program, capture=REQUIRED, kind=L.LSTM, compute="float16"):
    """Runs a program eagerly and captured; returns the captured run."""
    expected = None
    for each in (None, capture):
        scale = mixprec.DynamicLossScale(init=2.0**14, interval=3, growth=8.0)  # some windows overflow in float16
        run = Run(each, "Adam", network=lambda _: Text(kind), compute=compute, loss_scale=scale)
        program(run)
        expected = expected or run.results()
    assert_same(run, expected)
    assert run.optimizer.skipped or compute != "float16"
    return run


KINDS = [(L.LSTM, "float16", True), (L.StatefulGRU, "bfloat16", False), (L.StatefulPeepholeLSTM, "float16", False)]


@pytest.mark.parametrize(("kind", "compute", "bitwise"), first(2, KINDS))
def test_windows(kind, compute, bitwise):
    """First windows of an epoch begin without states, and get graphs of their own; one epoch has smaller batches."""

    def program(run):
        settings.configure(deterministic=bitwise)
        for epoch in range(10):
            run.model.predictor.reset_state()
            feed(run, range(9 if epoch == 0 else 3), size=2 if epoch == 7 else 4)

    *_, first, second, usual = beside_eager(program, kind=kind, compute=compute).step.report().split("\n")
    assert usual == "(4, 3, 16, 16) float32, (4,) int32: 4 eager calls, then a graph that was launched 11 times"
    assert "h of /predictor/first None, " in first
    assert "int32, before of /predictor None: " in second
    assert all(each.endswith("times") for each in (first, second))


def test_a_launch_reads_the_states_that_the_user_has_left():
    """They are set, written, change places, are multiplied, and come back after an evaluation."""

    def program(run):
        text = run.model.predictor
        feed(run, range(8))
        state = graph_array.array(np.full((4, 8), 0.5, text.first.c.dtype))
        text.first.set_state(chainer.Variable(state), chainer.Variable(-state))
        feed(run, [8])
        text.first.h.array[0] = 0.5
        text.first.h, text.second.h = text.second.h, text.first.h
        text.second.c.array = text.second.c.array * np.float16(0.5)
        feed(run, [8])
        states = [(link, dict(vars(link))) for link in (text, text.first, text.second)]
        with HOST.eagerly(), chainer.using_config("train", False), chainer.no_backprop_mode():
            text.reset_state()
            text(graph_array.array(batch(0, 2)[0]))
        for link, values in states:
            vars(link).update(values)
        feed(run, [8])
        with HOST.eagerly():  # the backward pass goes on behind it
            text.first.set_state(F.flip(chainer.Variable(text.first.c.array), 0), text.first.h)
        feed(run, [8])
        assert run.step is None or run.step.why_not.startswith("c of /predictor/first is a computed variable")
        feed(run, [8])

    assert beside_eager(program, {}).step.replays == 6


def test_an_evaluation():
    """It begins where the user resets the states, in the first and last calls, and else goes on from the last call."""
    found = []
    for captures in (False, True):
        text = Run(network=lambda _: Text(L.LSTM)).model.predictor
        call = capture_evaluation(text, **REQUIRED) if captures else text
        for number in range(24):
            if not 7 < number < 18:
                text.reset_state()
            with HOST.eagerly(), chainer.using_config("train", False), chainer.no_backprop_mode():
                found.append(np.array(call(graph_array.array(batch(number)[0])).array))
    np.testing.assert_array_equal(found[:24], found[24:])
    assert call.replays == 9


def test_without_a_gpu_a_step_ends_the_backward_pass():
    model = L.Classifier(Text(L.StatefulGRU))
    step = mixprec.capture(mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model))
    step(*batch(0))
    left = model.predictor.first.h
    step(*batch(1))
    assert left.creator_node is None


def test_losses_of_a_step_share_a_graph():
    """The second loss continues the text of the first one, and its backward pass goes into the graph of that."""

    def lossfun(model, x, t):
        model.predictor.reset_state()
        for part in (slice(0, 2), slice(2, 4)):
            yield model(x[part], t[part])

    settings.configure(deterministic=True)
    expected = None
    for each in (None, REQUIRED):
        run = Run(each, network=lambda _: Text(L.StatefulGRU), lossfun=lossfun).run(range(8))
        run.observed.clear()
        expected = expected or run.results()
    assert run.step.replays
    assert_same(run, expected)


def test_a_step_after_one_that_failed():
    """It begins without the graph that was left."""
    fails = [False]

    def lossfun(model, x, t):
        loss = model(x, t)
        if fails[0]:
            raise ArithmeticError
        return loss

    run = Run(REQUIRED, network=lambda _: Text(L.LSTM), lossfun=lossfun)
    run.run(range(4))
    fails[0] = True
    with pytest.raises(ArithmeticError):
        run.run([4])
    fails[0] = False
    left = run.model.predictor.first.h
    assert left.creator_node is not None
    run.run(range(4, 12))
    assert left.creator_node is None
    assert run.step.replays


def test_a_call_that_is_repeated_as_memory_ran_out():
    begins, fails = [], False

    def lossfun(model, x, t):
        begin = model.predictor.first.h
        loss = model(x, t)
        if fails:
            begins.append(np.array(begin.array))
            if len(begins) == 1:
                raise MemoryError
        return loss

    run = Run({}, network=lambda _: Text(L.LSTM), lossfun=lossfun).run(range(8))
    run.model.predictor.reset_state()
    run.run(range(2), size=2)
    fails = True
    run.run([2], size=2)
    first, second = begins
    np.testing.assert_array_equal(first, second)


class Mean(chainer.Chain):
    """Keeps a moving average, an array that only NumPy or CuPy computes with: it is not known as a state."""

    def __init__(self):
        super().__init__()
        self.mean = None
        with self.init_scope():
            self.out = L.Linear(768, CLASSES)

    def forward(self, x):
        y = self.out(x)
        now = y.array.mean(axis=0)
        self.mean = now if self.mean is None else self.mean * 0.5 + now * 0.5
        return y - chainer.Variable(self.mean)


def test_an_array_is_as_after_an_eager_step_if_the_graph_differs():
    settings.configure(deterministic=True)
    expected = None
    for each in (None, {}):
        run = Run(each, network=lambda _: Mean()).run(range(8))
        expected = expected or run.results()
    assert "in the graph, and" in run.step.why_not
    assert_same(run, expected)
