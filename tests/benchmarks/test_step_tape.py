"""Steps are replayed without computing, and only what is promised is replaced."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import function_node

import mixprec
from benchmarks.step.tape import PRIMITIVES, Tape

pytestmark = pytest.mark.slow


class Net(chainer.Chain):
    """A convolution, a batch normalization, a branch and a sum: Chainer adds two gradients."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1)
            self.bn = L.BatchNormalization(8)
            self.fc = L.Linear(8 * 16, 5)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        return self.fc(F.relu(h + F.tanh(h)))


def _step(**settings):
    model = L.Classifier(Net())
    if settings:
        mixprec.convert(model, **settings)
    x, t = np.random.RandomState(0).normal(size=(2, 3, 4, 4)).astype(np.float32), np.array([0, 4], np.int32)

    def step():
        model.cleargrads()
        loss = model(x, t)
        loss.backward()
        return [loss.array.copy(), *(param.grad.copy() for _, param in sorted(model.namedparams()))]

    return model, step


SETTINGS = [{}, {"compute": "float16"}, {"compute": "float32", "layout": "nchw", "fuse": False}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_replayed_step_computes_nothing(settings):
    model, step = _step(**settings)
    for _ in range(2):
        step()
    results = []
    tape = Tape(lambda: results.append(step()))
    mean = model.predictor.bn.avg_mean.copy()
    for param in model.params():
        param.array[...] = np.nan  # would be seen in everything that is computed
    with tape.replaying() as start:
        for _ in range(3):
            start()
            results.append(step())
    for replayed in results[1:]:
        for found, expected in zip(replayed, results[0], strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)
            assert np.isfinite(found).all()
    np.testing.assert_array_equal(model.predictor.bn.avg_mean, mean)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_afterwards_everything_computes_again(settings):
    _, step = _step(**settings)
    for _ in range(2):
        step()
    classes = [function_node.FunctionNode, *function_node.FunctionNode.__subclasses__()]
    before = [vars(cls).get("forward") for cls in classes]
    expected = step()
    with Tape(step).replaying() as start:
        start()
        step()
    assert [vars(cls).get("forward") for cls in classes] == before
    assert vars(PRIMITIVES) == {}
    for found, wanted in zip(step(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_nodes_of_mixprec_run_and_their_primitives_are_replaced():
    _, step = _step(compute="float16")
    for _ in range(2):
        step()
    kinds = [kind for kind, _, _ in Tape(step).calls]
    # The sum is that of the net; the normalization takes the gradients of both branches.
    assert kinds.count("batch_norm") == kinds.count("batch_norm_backward") == kinds.count("add") == 1
    assert not any(kind.__module__.startswith("mixprec.") for kind in kinds if not isinstance(kind, str))
    assert [kind.__name__ for kind in kinds if not isinstance(kind, str)].count("Tanh") == 1


def test_a_step_that_computes_something_else_is_an_error():
    x = chainer.Variable(np.ones(3, np.float32))
    tape = Tape(lambda: F.exp(x))

    def replay(step):
        with tape.replaying() as start:
            start()
            step()

    with pytest.raises(RuntimeError, match="computes Sin, where Exp was recorded"):
        replay(lambda: F.sin(x))
    with pytest.raises(RuntimeError, match="computes Sin, which it did not when"):
        replay(lambda: F.sin(F.exp(x)))
    with pytest.raises(RuntimeError, match="ended before Exp, which"):
        replay(lambda: None)
    assert F.exp(x).array[0] == np.exp(np.float32(1))
