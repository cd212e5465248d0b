"""Promise 9: ``LossScaleExhausted`` says which gradients, and which layer, stopped being finite."""

import copy
import re

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(4, 4, initialW=np.eye(4, dtype="f"))
            self.bn = L.BatchNormalization(4)
            self.second = L.Linear(4, 4, initialW=np.eye(4, dtype="f"))
            self.third = L.Linear(4, 2)

    def forward(self, x):
        return F.sum(self.third(self.second(F.relu(self.bn(self.first(x))))))


def _optimizer(patience=2, scale=None, compute="float16", batched=True):
    np.random.seed(0)
    model = chainer.Sequential(Net())
    mixprec.convert(model, compute=compute)
    scale = scale or mixprec.DynamicLossScale(init=2.0**8, patience=patience)
    return mixprec.MixedPrecisionOptimizer(optimizers.SGD(), scale, batched=batched).setup(model)


def _message(optimizer, *arguments):
    for _ in range(optimizer._scaler.patience - 1):
        optimizer.update(*arguments)
    with pytest.raises(mixprec.LossScaleExhausted) as error:
        optimizer.update(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


X = np.random.RandomState(0).normal(size=(8, 4)).astype(np.float32)


def test_patience_many_overflows_in_a_row_and_no_fewer():
    """A clean step in between starts the count again."""
    optimizer = _optimizer(patience=3)
    bad = X * np.float32(np.nan)
    for batch in (bad, bad, X, bad, bad):
        optimizer.update(optimizer.target, batch)
    with pytest.raises(mixprec.LossScaleExhausted, match=r"^3 steps in a row overflowed"):
        optimizer.update(optimizer.target, bad)
    assert optimizer.skipped == 5
    assert optimizer.loss_scale == 2.0**3


SCALES = [
    (mixprec.NoLossScale(patience=3), "; gradients that"),
    (mixprec.StaticLossScale(2.0**4, patience=3), "; the loss scale is always 2^4; gradients that"),
]


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("compute", ["float16", "float32"])
@pytest.mark.parametrize(("scale", "words"), SCALES)
def test_patience_without_a_scale_that_moves(scale, words, compute, batched):
    """The message speaks of a scale only where there is one."""
    optimizer = _optimizer(scale=copy.deepcopy(scale), compute=compute, batched=batched)
    bad = X * np.float32(np.nan)
    for batch in (bad, bad, X, bad, bad):
        optimizer.update(optimizer.target, batch)
    with pytest.raises(mixprec.LossScaleExhausted) as error:
        optimizer.update(optimizer.target, bad)
    assert str(error.value).startswith(f"3 steps in a row overflowed, as many as patience allows{words}")
    assert optimizer.skipped == 5


@pytest.mark.parametrize("loss_scale", [None, 16])
def test_chainers_trainer_ends_where_training_has_diverged(loss_scale):
    """With what most programs write, in FP32: a number, or no loss scale at all."""
    model = L.Classifier(L.Linear(4, 3), lossfun=lambda y, t: F.sum(y) * np.float32(np.nan))
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), loss_scale).setup(model)
    data = chainer.datasets.TupleDataset(X, np.zeros(8, np.int32))
    updater = chainer.training.updaters.StandardUpdater(chainer.iterators.SerialIterator(data, 4), optimizer)
    trainer = chainer.training.Trainer(updater, (100, "iteration"))
    with pytest.raises(mixprec.LossScaleExhausted, match=r"^50 steps in a row overflowed"):
        trainer.run(show_loop_exception_msg=False)
    assert (updater.iteration, optimizer.skipped, optimizer.t) == (49, 50, 0)


def test_without_patience_training_goes_on():
    optimizer = _optimizer(scale=mixprec.NoLossScale(patience=None))
    for _ in range(60):
        optimizer.update(optimizer.target, X * np.float32(np.nan))
    assert (optimizer.skipped, optimizer.t) == (60, 0)


def test_the_first_layer_whose_activation_is_not_finite():
    """A weight that is inf spoils its layer and all after it; the error names that layer, and the weight."""
    optimizer = _optimizer()
    optimizer.target[0].second.W.array[1, :] = np.inf
    message = _message(optimizer, optimizer.target, X)
    assert "the loss scale has come down to 2^6" in message
    found = re.search(
        r"first layer whose activation is not finite: (\S+) \((\w+), (\d+) inf, (\d+) NaN of 32\)", message
    )
    assert found[1] == "/0/second"
    assert found[2] == "Linear"
    assert int(found[3]) + int(found[4]) == 8
    assert message.endswith("its parameters /0/second/W are not finite")


class Style(chainer.Chain):
    """A function between two layers."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.init_scope():
            self.features = L.Linear(4, 32, initialW=1.0, nobias=True)
            self.f = L.Linear(32, 2)

    def forward(self, x):
        return F.sum(self.f(self.function(self.features(x))))


CULPRITS = [
    (
        lambda h: F.matmul(h, h, transa=True) / 32,
        r"function whose result is not finite: MatMul in /predictor \(Style, 1024 inf, 0 NaN of 1024\); "
        r'in float16 it overflows: divide its inputs, or mixprec.convert\(model, keep_float32=\("/predictor",\)\)$',
    ),
    (lambda h: F.relu(h * h) / 32, r"function whose result is not finite: Mul in /predictor \(Style, 256 inf, "),
    (
        lambda h: F.tile(F.sum(h, axis=1, keepdims=True), (1, 32)),  # finite in float32
        r"layer whose activation is not finite: /predictor/f \(Linear, 0 inf, 16 NaN of 16\); its input does not "
        r"fit into float16: divide before it, or mixprec.convert\(model, keep_float32=\(\"/predictor/f\",\)\)$",
    ),
]


@pytest.mark.parametrize(("function", "culprit"), CULPRITS, ids=["product", "elementwise", "input"])
def test_a_function_that_overflows_between_two_layers_is_named(function, culprit):
    model = L.Classifier(Style(function))
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), mixprec.DynamicLossScale(init=1.0, patience=2))
    message = _message(optimizer.setup(model), model.predictor, np.full((8, 4), 1000, np.float32))
    assert re.search(f"; first {culprit}", message), message


def test_the_worst_parameters_with_counts_of_inf_and_nan():
    """Counted in the gradients of the last step, the worst first."""
    optimizer = _optimizer()

    def lossfun(x):
        net = optimizer.target[0]
        spoiled = F.sum(F.cast(net.third.W, "float32") * np.array([[np.inf, 1, 1, 1], [np.nan, np.inf, 1, 1]], "f"))
        return net(x) + spoiled

    message = _message(optimizer, lossfun, X)
    assert "gradients that are not finite, the worst first: /0/third/W (2 inf, 1 NaN of 8);" in message
    assert message.endswith("every activation is finite, so that the overflow is in the backward pass")


def test_a_batch_that_is_not_finite_itself():
    optimizer = _optimizer()
    bad = X.copy()
    bad[0, :2] = np.nan
    bad[1, 0] = np.inf
    assert _message(optimizer, optimizer.target, bad).endswith("the batch itself holds 1 inf, 2 NaN of 32")


def test_the_second_look_at_the_batch_moves_no_statistics():
    optimizer = _optimizer()
    bn = optimizer.target[0].bn
    optimizer.update(optimizer.target, X)
    before = bn.avg_mean.copy(), bn.avg_var.copy()
    optimizer.target[0].second.W.array[...] = np.nan
    _message(optimizer, optimizer.target, X)
    np.testing.assert_array_equal((bn.avg_mean, bn.avg_var), before)


def test_a_hand_written_loop_learns_how_to_have_the_layer_named():
    optimizer = _optimizer(patience=1)
    optimizer.target[0].second.W.array[...] = np.nan
    optimizer.target.cleargrads()
    optimizer.scale_loss(optimizer.target(X)).backward()
    assert "update(lossfun, ...)" in _message(optimizer)


def test_more_than_five_parameters_are_summed_up():
    optimizer = _optimizer(patience=1)
    message = _message(optimizer, lambda x: optimizer.target(x) * np.float32(np.inf), X)
    assert ", and 3 more; " in message
