"""Backward passes that the wrapper did not start: of a library, and within a pass."""

import logging

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec
from mixprec import announcements
from mixprec.optimizer import UnscaledBackward

X = np.random.RandomState(0).uniform(-1, 1, (4, 8)).astype(np.float32)
T = np.arange(4, dtype=np.int32) % 3
WAYS_OUT = r'loss_scale=None.*compute="bfloat16".*optimizer\.scale_loss\(loss\)\.backward\(\)'


def _mlp():
    np.random.seed(0)
    return L.Classifier(chainer.Sequential(L.Linear(8, 16), F.relu, L.Linear(16, 3)))


def _masters(optimizer, model):
    master = getattr(optimizer, "master", lambda param: param)
    return {name: master(param).array.copy() for name, param in model.namedparams()}


def _assert_same(found, expected):
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.fixture
def said(monkeypatch, caplog):
    monkeypatch.setattr(announcements, "_said", set())
    caplog.set_level(logging.WARNING, "mixprec")
    return lambda: [record.getMessage() for record in caplog.records]


# A library that calls loss.backward(); optimizer.update()


def _library(optimizer, model, steps=3):
    """What ChainerRL's agents do."""
    for _ in range(steps):
        loss = model(X, T)
        model.cleargrads()
        loss.backward()
        optimizer.update()
    return _masters(optimizer, model)


@pytest.mark.parametrize("compute", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"batched": False}, {"zero_gradients": True}])
def test_a_library_that_does_not_scale(said, compute, options):
    """In FP32 it is plain Chainer, in BF16 a run without a scale; said once. The scale counts such steps as any."""
    results = []
    for loss_scale in (mixprec.DynamicLossScale(interval=2), None):
        model = _mlp()
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), loss_scale, **options).setup(model)
        if compute is not None:
            mixprec.convert(model, compute=compute)
        results.append(_library(optimizer, model))
        assert (optimizer.t, optimizer.loss_scale) == (3, 1.0 if loss_scale is None else 2.0**17)
    _assert_same(*results)
    assert len([line for line in said() if "without loss scale" in line]) == 1
    if compute is None:
        plain = _mlp()
        _assert_same(results[0], _library(optimizers.Adam().setup(plain), plain))


def test_an_overflow_of_a_library_skips_the_step():
    model = _mlp()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD()).setup(model)
    before = _masters(optimizer, model)
    model.cleargrads()
    with np.errstate(invalid="ignore"):
        (model(X, T) * np.float32(np.inf)).backward()
    optimizer.update()
    assert optimizer.last_step_skipped
    _assert_same(_masters(optimizer, model), before)


class Cast(chainer.Chain):
    """FP32 parameters around activations in FP16."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.inner, self.outer = L.Linear(8, 8), L.Linear(8, 1)

    def forward(self, x):
        return F.mean(self.outer(F.cast(F.cast(self.inner(x), "float16"), "float32")))


@pytest.mark.parametrize("rates", [None, {"/inner/*": 0}])
def test_a_pass_through_float16_needs_a_scale_though_all_gradients_are_in_float32(rates):
    """And one that goes no further than to a part in FP32, since the rest is frozen, does not."""
    model = Cast()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), rates=rates).setup(model)
    model.cleargrads()
    model(X).backward()
    if rates is None:
        with pytest.raises(UnscaledBackward, match="/inner/. comes from a backward.* through float16.*" + WAYS_OUT):
            optimizer.update()
    else:
        optimizer.update()
        assert optimizer.t == 1


def test_sums_of_scaled_losses_are_no_unscaled_pass():
    model = _mlp()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD()).setup(model)
    model.cleargrads()
    (optimizer.scale_loss(model(X, T)) + optimizer.scale_loss(model(X, T))).backward()
    with pytest.raises(UnscaledBackward, match="parts of different loss scales.*" + WAYS_OUT):
        optimizer.update()


def test_a_replica_in_float16_brings_gradients_that_need_a_scale():
    """``addgrads``: the replica's parameters have no masters."""
    model = L.Classifier(L.Linear(8, 3))
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD()).setup(model)
    mixprec.convert(model)
    replica = model.copy()
    for each in (model, replica):
        each.cleargrads()
    replica(X, T).backward()
    model.addgrads(replica)
    with pytest.raises(UnscaledBackward, match="through float16"):
        optimizer.update()
