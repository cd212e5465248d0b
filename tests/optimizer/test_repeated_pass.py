"""Backward passes of one loss over the same graph: the last one is that of a graph that had no other."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.functions import reset_dropout
from mixprec.precision.repeated_pass import one_pass_only, repeatable, why_not
from tests.cases import first
from tests.zoo.models import CASES

LABELS = np.array([0, 1, 2, 0], np.int32)


class Popped(chainer.Function):
    """An old-style function that frees in its backward what it has kept, and overwrites arrays, also in containers."""

    def forward(self, inputs):
        self.twice, self.kept = inputs[0] * 2, [1]
        self.held = {"ones": [(np.ones_like(inputs[0]),)]}
        return (inputs[0] * inputs[0],)

    def backward(self, inputs, grad_outputs):
        del self.kept
        self.twice *= grad_outputs[0]
        (ones,) = self.held["ones"].pop()
        ones *= self.twice
        return (ones,)


class Overwritten(chainer.Function):
    """An old-style function whose backward writes into its input and its output."""

    def forward(self, inputs):
        self.retain_outputs((0,))
        return (inputs[0] * inputs[0],)

    def backward(self, inputs, grad_outputs):
        self.output_data[0][...] *= grad_outputs[0]
        gradient = inputs[0]
        gradient *= 2 * grad_outputs[0]
        return (gradient + self.output_data[0],)


class Checkpoint(Popped):
    """A hand-written checkpoint: it runs a backward pass of its own inside."""

    def __init__(self, link):
        self._link = link

    def forward(self, inputs):
        with chainer.no_backprop_mode():
            return (self._link(inputs[0]).array,)

    def backward(self, inputs, grad_outputs):
        with chainer.force_backprop_mode():
            x = chainer.Variable(inputs[0])
            y = self._link(x)
        y.grad = grad_outputs[0]
        y.backward()
        return (x.grad,)


def ctc(h):
    lengths = np.full(1, 4, "i")
    sequence = [F.reshape(row, (1, -1)) for row in F.separate(h)]
    return F.connectionist_temporal_classification(sequence, LABELS[None, 1:3], 0, lengths, np.full(1, 2, "i"))


HEADS = {
    "hinge": lambda h, other: F.hinge(h, LABELS),
    "squared hinge": lambda h, other: F.hinge(h, LABELS, norm="L2"),
    "ctc": lambda h, other: ctc(h),
    "softmax cross entropy": lambda h, other: F.softmax_cross_entropy(h, LABELS),
    "old style": lambda h, other: F.sum(Popped()(h)),
    "in place": lambda h, other: F.sum(2 * Overwritten()(F.tanh(h))),
    "forget": lambda h, other: F.sum(F.forget(lambda h: F.tanh(other(h)), h)),
    "checkpoint": lambda h, other: F.sum(F.tanh(Checkpoint(other)(h))),
    "gradients of gradients": lambda h, other: F.sum(
        chainer.grad([F.sum(F.tanh(other(h)))], [h], enable_double_backprop=True)[0] ** 2
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_functions_and_gradients_are_as_if_there_had_been_no_pass_before(head):
    """Also those of another model, which has gradients already, and of an input."""

    def gradients(passes):
        np.random.seed(0)
        model, other = L.Linear(5, 3), L.Linear(3, 3)
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
        x = chainer.Variable(np.random.normal(size=(4, 5)).astype("f"))
        x.grad, other.W.grad, other.b.grad = x.array.copy(), other.W.array.copy(), None
        before = x.grad, other.W.grad
        loss = HEADS[head](model(x), other)
        model.cleargrads()
        with repeatable() as taken:
            for number in range(passes):
                if number:
                    taken.restore()
                    assert (x.grad, other.W.grad) == before
                    assert model.W.grad is None
                optimizer.scale_loss(loss).backward()
        return [x.grad, other.W.grad, other.b.grad, model.W.grad, model.b.grad]

    for found, expected in zip(gradients(3), gradients(1), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", first(2, [name for name, case in CASES.items() if not case.large]))
def test_networks(name):
    """Each network of the zoo, converted."""
    case = CASES[name]

    def gradients(passes):
        np.random.seed(0)
        reset_dropout()
        model, inputs = case.build(), case.inputs(np.random.RandomState(0))
        named = inputs if isinstance(inputs, dict) else {}
        given = () if named else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(), 64.0).setup(model)
        mixprec.convert(model)
        with np.errstate(all="ignore"), repeatable() as taken:
            loss = case.loss(model, getattr(model, case.method)(*given, **named))
            model.cleargrads()
            for number in range(passes):
                if number:
                    taken.restore()
                optimizer.scale_loss(loss).backward()
        return {name: None if param.array is None else param.grad for name, param in model.namedparams()}

    found = gradients(2)
    for name, expected in gradients(1).items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def test_what_cannot_go_backward_twice():
    """Other processes would not come by for a second pass, unless the optimizer makes them."""

    def reasons(module, **attributes):
        kind = type("Node", (F.activation.relu.ReLU,), {"__module__": module})
        x = chainer.Variable(np.ones(2, "f"))
        (y,) = kind().apply((x,))
        vars(y.creator_node).update(attributes)
        return [why_not(F.sum(y), alone=alone) for alone in (True, False)]

    assert reasons("chainer.functions") == [None, None]
    assert reasons("chainermn.functions.point_to_point_communication") == ["the model lies on several processes"] * 2
    sums = ["a function sums over processes, and the optimizer has no communicator", None]
    assert reasons("chainermn.functions.collective_communication") == sums
    assert reasons("mixprec.functions.batch_normalization", _ranks=object()) == sums
    assert reasons("anything", one_pass_only="theirs") == ["theirs"] * 2
    with one_pass_only("mixprec.offload"):
        assert reasons("chainer.functions") == ["mixprec.offload"] * 2
