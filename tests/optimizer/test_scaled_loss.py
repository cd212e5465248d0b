"""Backward passes that the wrapper did not start: of a library, and within a pass."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from chainer.graph_optimizations.static_graph import static_graph

import mixprec
from mixprec.optimizer import UnscaledBackward
from tests.cases import pairs

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
def said(announced):
    return lambda: [record.getMessage() for record in announced.records]


# A library that calls loss.backward(); optimizer.update()


def _library(optimizer, model, steps=3):
    """What ChainerRL's agents do."""
    for _ in range(steps):
        loss = model(X, T)
        model.cleargrads()
        loss.backward()
        optimizer.update()
    return _masters(optimizer, model)


@pytest.mark.parametrize(
    ("compute", "options"), [(None, {}), ("float32", {"batched": False}), ("bfloat16", {"zero_gradients": True})]
)
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


# Passes within a pass


class Checkpoint(chainer.FunctionNode):
    """A checkpoint as people write it: gradients of parameters are set from within the backward pass."""

    def __init__(self, link, sets):
        self.link, self.sets = link, sets

    def forward(self, xs):
        self.retain_inputs((0,))
        with chainer.no_backprop_mode():
            return (self.link(chainer.Variable(xs[0])).array,)

    def backward(self, indexes, gys):
        x = chainer.Variable(self.get_retained_inputs()[0].array)
        with chainer.force_backprop_mode():
            y = self.link(x)
        params = list(self.link.params())
        if self.sets == "grad":
            return chainer.grad([y], [x, *params], [gys[0]], set_grad=True)[:1]
        gx, *gradients = chainer.grad([y], [x, *params], [gys[0]])
        for param, gradient in zip(params, gradients, strict=True):
            if self.sets == "grad_var":
                param.grad_var = gradient
            elif self.sets == "addgrad":
                param.addgrad(_with_gradient(gradient))
            elif param.grad is None:
                param.grad = gradient.array
            else:
                param.grad += gradient.array
        return (gx,)


def _with_gradient(gradient):
    variable = chainer.Variable(gradient.array)
    variable.grad = gradient.array
    return variable


class OldCheckpoint(chainer.Function):
    """The same in the style of Chainer 1."""

    def __init__(self, link):
        self.link = link

    def forward(self, xs):
        self.retain_inputs((0,))
        with chainer.no_backprop_mode():
            return (self.link(chainer.Variable(xs[0])).array,)

    def backward(self, xs, gys):
        x = chainer.Variable(xs[0])
        with chainer.force_backprop_mode():
            y = self.link(x)
        y.grad = gys[0]
        y.backward()
        return (x.grad,)


class Checkpointed(chainer.Chain):
    def __init__(self, sets):
        super().__init__()
        self.sets = sets
        np.random.seed(0)
        with self.init_scope():
            self.inner, self.outer = L.Linear(8, 16), L.Linear(16, 3)

    def forward(self, x):
        if self.sets is None:
            h = self.inner(x)
        else:
            h = OldCheckpoint(self.inner)(x) if self.sets == "old" else Checkpoint(self.inner, self.sets).apply((x,))[0]
        return self.outer(F.relu(h))


def _trained(sets, compute, optimizer, step):
    model = L.Classifier(Checkpointed(sets))
    optimizer.setup(model)
    if compute is not None:
        mixprec.convert(model, compute=compute)
    for _ in range(3):
        step(optimizer, model)
    return _masters(optimizer, model)


def _update(optimizer, model):
    optimizer.update(model, chainer.Variable(X), T)


@pytest.mark.parametrize(("sets", "compute"), pairs(["grad", "grad_var", "array", "addgrad", "old"], [None, "float16"]))
def test_a_checkpoint_written_by_hand(sets, compute):
    """Its gradients have the scale of the pass around it: the weights are those without the checkpoint."""
    scale = mixprec.DynamicLossScale(init=2.0**8, interval=1)
    found = _trained(sets, compute, mixprec.MixedPrecisionOptimizer(optimizers.SGD(0.1), scale), _update)
    scale = mixprec.DynamicLossScale(init=2.0**8, interval=1)
    expected = _trained(None, compute, mixprec.MixedPrecisionOptimizer(optimizers.SGD(0.1), scale), _update)
    _assert_same(found, expected)
    if compute is None:
        _assert_same(found, _trained(None, None, optimizers.SGD(0.1), _update))


class Static(chainer.Chain):
    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.a, self.norm, self.b = L.Linear(8, 16), L.BatchNormalization(16), L.Linear(16, 3)

    @static_graph
    def forward(self, x):
        return self.b(F.relu(self.norm(self.a(x))))


@pytest.mark.parametrize("loss_scale", [None, "dynamic"])
def test_chainers_static_graph(loss_scale):
    """The run of plain Chainer, bit for bit, and statistics of a skipped step come back."""

    def run(optimizer):
        model = L.Classifier(Static())
        optimizer.setup(model)
        random = np.random.RandomState(1)
        for _ in range(5):
            optimizer.update(model, random.rand(4, 8).astype(np.float32), T)
        return _masters(optimizer, model), model

    optimizer = mixprec.MixedPrecisionOptimizer(
        optimizers.SGD(0.1), mixprec.DynamicLossScale(init=4.0, interval=1) if loss_scale == "dynamic" else loss_scale
    )
    found, model = run(optimizer)
    _assert_same(found, run(optimizers.SGD(0.1))[0])
    mean = model.predictor.norm.avg_mean.copy()
    with np.errstate(invalid="ignore"):
        optimizer.update(model, np.full((4, 8), np.inf, np.float32), T)
    assert optimizer.last_step_skipped
    np.testing.assert_array_equal(model.predictor.norm.avg_mean, mean)


# zero_gradients


class Sizes(chainer.Chain):
    """Parameters whose gradients are Chainer's initial NaN, in FP32, and one that gets its shape in the first pass."""

    def __init__(self):
        super().__init__()
        np.random.seed(0)
        with self.init_scope():
            self.linear, self.norm, self.last = L.Linear(8, 4), L.BatchNormalization(4), L.Linear(None, 3)

    def forward(self, x):
        return self.last(self.norm(self.linear(x)))


@pytest.mark.parametrize("converts", [False, True])
def test_with_zero_gradients_nothing_is_cleared_before_the_first_pass(converts):
    def run(clears):
        model = L.Classifier(Sizes())
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(0.1), 64.0, zero_gradients=True)
        optimizer.setup(model)
        if converts:
            mixprec.convert(model)
        if clears:
            model.cleargrads()
        for _ in range(2):
            optimizer.scale_loss(model(X, T)).backward()
            optimizer.update()
        assert optimizer.t == 2
        return _masters(optimizer, model)

    _assert_same(run(False), run(True))


def test_gradients_from_before_setup_count():
    model = _mlp()
    model.cleargrads()
    model(X, T).backward()
    before = _masters(None, model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(1.0), zero_gradients=True).setup(model)
    gradients = {name: gradient.copy() for name, gradient in optimizer.unscaled_gradients()}
    optimizer.update()
    _assert_same(_masters(optimizer, model), {name: before[name] - gradients[name] for name in before})
