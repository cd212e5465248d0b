"""MixedPrecisionOptimizer: masters, scaling, skipped steps, hooks, accumulation and detection of unscaled gradients."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers
from hypothesis import given
from hypothesis import strategies as st

import mixprec
from mixprec.optimizer import UnscaledBackward
from tests.cases import pairs


class Net(chainer.Chain):
    """Convolution, batch norm and a linear layer, so that there are FP16 and FP32 parameters and statistics."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.fc = L.Linear(8, 4)

    def forward(self, x):
        return self.fc(F.average(F.relu(self.bn(self.conv(x))), axis=(2, 3)))


class LazyNet(chainer.Chain):
    """The same, with every size left to the first batch."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(axis=(0, 2, 3))
            self.fc = L.Linear(None, 4)

    forward = Net.forward


class ChosenGradient(chainer.Chain):
    """A weight and a bias whose gradients are what the caller says; their values have no influence."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.linear = L.Linear(4, 3, initialW=np.arange(-6, 6, dtype="f").reshape(3, 4) / 8, initial_bias=0.5)

    def forward(self, *gradients):
        params = [self.linear.W, self.linear.b]
        return sum(
            F.sum(F.cast(param, "float32") * gradient.astype(np.float32))
            for param, gradient in zip(params, gradients, strict=True)
        )


def _batch(step, poison=False):
    random = np.random.RandomState(step)
    x = random.normal(size=(8, 3, 6, 6)).astype(np.float32)
    if poison:
        x[0, 0, 0, 0] = np.inf
    return x, random.randint(0, 4, 8).astype(np.int32)


def _model(compute="float16", net=Net, **options):
    np.random.seed(0)
    model = L.Classifier(net())
    mixprec.convert(model, compute=compute, **options)
    return model


def _wrapped(compute="float16", inner=None, loss_scale="dynamic", net=Net, **options):
    inner = inner or optimizers.CorrectedMomentumSGD(lr=0.1)
    return mixprec.MixedPrecisionOptimizer(inner, loss_scale).setup(_model(compute, net, **options))


def _run(optimizer, steps):
    for step in steps:
        optimizer.update(optimizer.target, *_batch(step))
    return optimizer


def _run_by_hand(optimizer, steps, poison=False):
    model = optimizer.target
    for step in steps:
        with np.errstate(invalid="ignore"):
            loss = model(*_batch(step, poison))
            model.cleargrads()
            optimizer.scale_loss(loss).backward()
        optimizer.update()
    return optimizer


def _state(optimizer):
    """Everything that a step may change, as arrays by name."""
    saved = serializers.DictionarySerializer()
    optimizer.serialize(saved["optimizer"])
    optimizer.target.serialize(saved["model"])
    return {name: np.array(value) for name, value in saved.target.items()}


OWN = ("optimizer/mixprec/skipped", "optimizer/mixprec/last_step_skipped", "optimizer/mixprec/loss_scale")


def _assert_same(left, right, but=()):
    assert left.keys() == right.keys()
    for name in left:
        if not name.startswith(tuple(but) or ("-",)):
            np.testing.assert_array_equal(left[name], right[name], err_msg=name, strict=True)


# --- what it is for


def test_masters_keep_updates_that_fp16_would_round_away():
    """1,000 updates of 1e-4 on a weight of 1: each is below half of FP16's spacing there, 4.9e-4."""
    model = L.Linear(1, 1, nobias=True, initialW=1.0)
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=1e-4), None).setup(model)
    for _ in range(1000):
        model.W.grad = np.ones_like(model.W.array)
        optimizer.update()
    np.testing.assert_allclose(model.W.array, 0.9, rtol=2**-11)


def test_gradients_below_the_fp16_range_survive_only_with_a_scale():
    """A gradient of 2**-30 is 0 in FP16; scaled by 2**16 it is a normal number."""

    def moved(loss_scale):
        model = L.Linear(1, 1, nobias=True, initialW=1.0)
        mixprec.convert(model)
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=1.0), loss_scale).setup(model)
        optimizer.update(lambda: F.sum(model(np.ones((1, 1), np.float32))) * 2.0**-30)
        ((_, gradient),) = optimizer.unscaled_gradients()
        return float(gradient[0, 0])

    assert moved(None) == 0
    assert moved(2.0**16) == 2.0**-30


@given(
    gradient=st.lists(st.floats(-1, 1, width=16), min_size=12, max_size=12),
    exponent=st.integers(min_value=-10, max_value=15),
)
def test_unscaling_is_exact(gradient, exponent):
    """What backward left in FP16 reaches FP32 divided by the scale, without a change of a mantissa."""
    model = ChosenGradient()
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 2.0**exponent).setup(model)
    gradient = np.array(gradient, np.float16).reshape(3, 4)
    optimizer.update(model, gradient, np.zeros(3))
    scaled = model.linear.W.grad
    assert scaled.dtype == np.float16
    found = dict(optimizer.unscaled_gradients())["/linear/W"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.astype(np.float64), scaled.astype(np.float64) / 2.0**exponent)


# --- promise 2: skipped steps


@pytest.mark.parametrize(
    ("name", "at", "loss_scale", "by_hand"), pairs(["Adam", "MSVAG"], [0, 2], ["dynamic", 1024, None], [False, True])
)
def test_a_skipped_step_changes_nothing_but_the_scale_and_its_counters(name, at, loss_scale, by_hand):
    """Promise 2: masters, FP16 weights, state, t, statistics; also at the first step; then as if it had not been."""
    if loss_scale == "dynamic":  # a floor keeps the scale, as an FP16 gradient may round differently at another one
        loss_scale = mixprec.DynamicLossScale(init=2.0**10, floor=2.0**10)

    def new():
        return _wrapped(inner=getattr(optimizers, name)(), loss_scale=loss_scale)

    disturbed, undisturbed = _run(new(), range(at)), _run(new(), range(at))
    before = _state(disturbed)
    parameters = [param.array.copy() for param in disturbed.target.params()]
    if by_hand:
        _run_by_hand(disturbed, [99], poison=True)
    else:
        disturbed.update(disturbed.target, *_batch(99, poison=True))
    assert disturbed.last_step_skipped
    assert (disturbed.skipped, disturbed.t) == (1, at)
    _assert_same(_state(disturbed), before, but=OWN)
    for param, array in zip(disturbed.target.params(), parameters, strict=True):
        found, expected = (np.ascontiguousarray(each).view(np.uint8) for each in (param.array, array))
        np.testing.assert_array_equal(found, expected)
        assert param.update_rule.t == at
    _run(disturbed, range(at, 5))
    _run(undisturbed, range(at, 5))
    assert not disturbed.last_step_skipped
    _assert_same(_state(disturbed), _state(undisturbed), but=OWN)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_first_step_that_overflows_while_it_gives_the_model_its_sizes(by_hand):
    """Promise 2, for lazily sized links: their statistics are those of a model that has seen no batch."""
    optimizer = _wrapped(net=LazyNet, loss_scale=8)
    if by_hand:
        _run_by_hand(optimizer, [99], poison=True)
    else:
        optimizer.update(optimizer.target, *_batch(99, poison=True))
    assert optimizer.skipped == 1
    np.testing.assert_array_equal(optimizer.target.predictor.bn.avg_mean, np.zeros(8))
    np.testing.assert_array_equal(optimizer.target.predictor.bn.avg_var, np.ones(8))
    _run(optimizer, range(3))
    # the random weights are drawn in the order conv, fc in either case
    _assert_same(_state(optimizer), _state(_run(_wrapped(net=LazyNet, loss_scale=8), range(3))), but=OWN)


def test_statistics_that_a_link_creates_in_a_skipped_step_are_gone_after_it():
    """Promise 2, for links of the user's own: their first values are theirs to make again."""

    class Largest(chainer.Link):
        def __init__(self):
            super().__init__()
            self.seen = None
            self.register_persistent("seen")
            with self.init_scope():
                self.scale = chainer.Parameter(np.ones((), np.float32))

        def forward(self, x):
            self.seen = np.abs(x).max(keepdims=True) if self.seen is None else np.maximum(self.seen, np.abs(x).max())
            return F.sum(x * F.broadcast_to(self.scale, x.shape))

    model = Largest()
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 1).setup(model)
    for x, seen in (([np.inf], None), ([2.0], 2.0), ([np.nan], 2.0), ([3.0], 3.0)):
        optimizer.update(model, np.array(x, np.float32))
        assert model.seen == seen
    assert (optimizer.skipped, optimizer.t) == (2, 2)


def test_statistics_that_were_loaded_or_moved_between_steps_are_what_a_skip_comes_back_to():
    """Promise 2: a skipped step undoes itself, not what somebody did before it; calls in training mode are a part."""
    optimizer = _run(_wrapped(), range(2))
    bn = optimizer.target.predictor.bn
    bn.avg_mean[...] = 7
    with chainer.no_backprop_mode(), optimizer.evaluated():
        optimizer.target(*_batch(5))  # recalibrates the statistics
    moved = bn.avg_mean.copy()
    assert not np.array_equal(moved, np.full(8, 7))
    with chainer.no_backprop_mode():
        optimizer.target(*_batch(6))  # as a teacher
    _run_by_hand(optimizer, [99], poison=True)
    assert optimizer.last_step_skipped
    np.testing.assert_array_equal(bn.avg_mean, moved)


# --- promise 3: hooks


@pytest.mark.parametrize(("level", "timing", "bad"), pairs(["optimizer", "rule"], ["pre", "post"], [np.inf, np.nan]))
def test_a_hook_that_brings_inf_or_nan_in_leads_to_a_skip(level, timing, bad):
    """Promise 3: whatever the hook spoils, and though other parameters are updated before it runs."""
    optimizer = _run(_wrapped(), range(2))
    fc = optimizer.target.predictor.fc

    def spoil(owner, param=None):
        param = optimizer.master(fc.W)
        (param.grad if timing == "pre" else param.array)[0, 0] = bad

    before = _state(optimizer)
    owner = optimizer if level == "optimizer" else fc.W.update_rule
    owner.add_hook(spoil, name="spoil", timing=timing)
    _run(optimizer, [2])
    assert optimizer.last_step_skipped
    _assert_same(_state(optimizer), before, but=OWN)
    owner.remove_hook("spoil")
    _run(optimizer, [2])
    assert not optimizer.last_step_skipped


# --- promise 4: FP32


@pytest.mark.parametrize(("name", "loss_scale"), [("Adam", None), ("Adam", "dynamic"), ("CorrectedMomentumSGD", 8.0)])
def test_a_power_of_two_does_not_change_an_fp32_run_at_all(name, loss_scale):
    """Promise 4: bit for bit the run of plain Chainer, weight decay and clipping included."""
    plain = L.Classifier(Net())
    np.random.seed(0)
    plain = L.Classifier(Net())
    reference = getattr(optimizers, name)().setup(plain)
    # Chainer's own functions, whose sums are added up in the same order
    scaled = _wrapped("float32", getattr(optimizers, name)(), loss_scale, layout="nchw", fuse=False)
    for optimizer in (reference, scaled):
        optimizer.add_hook(optimizer_hooks.WeightDecay(1e-3))
        optimizer.add_hook(optimizer_hooks.GradientClipping(0.1))
    for step in range(5):
        reference.update(plain, *_batch(step))
        scaled.update(scaled.target, *_batch(step))
    for (name, expected), (_, found) in zip(plain.namedparams(), scaled.target.namedparams(), strict=True):
        np.testing.assert_array_equal(found.array, expected.array, err_msg=name)


# --- promise 6: accumulation


def _converted(model):
    mixprec.convert(model)
    return model


# --- promise 8: several optimizers, and backward passes that were not scaled


def test_a_hand_written_loop_is_the_same_step():
    _assert_same(_state(_run_by_hand(_wrapped(), range(3))), _state(_run(_wrapped(), range(3))))


def _unscaled(optimizer, model):
    model(*_batch(0)).backward()


def _scaled(optimizer, model):
    optimizer.scale_loss(model(*_batch(0))).backward()


_TWO_PASSES = [_unscaled, _scaled], [_scaled, _unscaled]


@pytest.mark.parametrize(
    ("compute", "passes"),
    [("float16", [_unscaled]), *((compute, passes) for compute in ("float16", "float32") for passes in _TWO_PASSES)],
)
def test_a_backward_pass_that_was_not_scaled_is_an_error(compute, passes):
    """Promise 8: it names the parameter and what to call, nothing changes, and the loop can go on after it."""
    optimizer = _run(_wrapped(compute), range(2))
    before = _state(optimizer)
    optimizer.target.cleargrads()
    for backward in passes:
        backward(optimizer, optimizer.target)
    with pytest.raises(UnscaledBackward, match=r"/predictor/\w+/\w+ .* optimizer\.scale_loss\(loss\)\.backward\(\)"):
        optimizer.update()
    _assert_same(_state(optimizer), before, but=["model/predictor/bn/avg"])  # the forward pass moved these
    _run_by_hand(optimizer, [2])
    assert optimizer.t == 3


def test_one_loss_and_two_optimizers_over_parts_of_the_model():
    """Promise 8: each divides by what the one backward pass was multiplied by."""
    split = _model()
    parts = split.predictor.conv, split.predictor.fc, split.predictor.bn
    trunk = chainer.ChainList(parts[0], parts[2])
    first = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.1), 2.0**10).setup(trunk)
    second = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.1), 2.0**4).setup(parts[1])
    whole = _wrapped(inner=optimizers.SGD(lr=0.1), loss_scale=2.0**10)
    for step in range(3):
        loss = split(*_batch(step))
        split.cleargrads()
        first.scale_loss(loss).backward()
        first.update()
        second.update()
    _run(whole, range(3))
    for (name, expected), (_, found) in zip(whole.target.namedparams(), split.namedparams(), strict=True):
        np.testing.assert_array_equal(found.array, expected.array, err_msg=name)


def test_two_losses_with_an_optimizer_each():
    """Promise 8: as in a GAN, where the loss of one model runs through the other; each has a scale of its own."""
    one, other = (_converted(L.Linear(3, 3, initialW=np.eye(3, dtype="f"))) for _ in "ab")
    x = np.arange(6, dtype="f").reshape(2, 3) / 8
    first = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.5), 2.0**8).setup(one)
    second = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.5), 2.0**3).setup(other)
    for _ in range(2):
        first.update(lambda: F.sum(other(one(x))))
        second.update(lambda: F.sum(other(one(x))))
    reference = [L.Linear(3, 3, initialW=np.eye(3, dtype="f")) for _ in "ab"]
    plain = [optimizers.SGD(lr=0.5).setup(model) for model in reference]
    for _ in range(2):
        for optimizer in plain:
            optimizer.update(lambda: F.sum(reference[1](reference[0](x))))
    for model, expected in zip((one, other), reference, strict=True):
        np.testing.assert_allclose(model.W.array, expected.W.array, rtol=2**-9, atol=2**-9)


def _weight_of_zero(loss_scale):
    """SGD with lr 1 on one weight of 0, so that the weight is minus the sum of the gradients that were applied."""
    model = _converted(L.Linear(1, 1, nobias=True, initialW=0))
    return mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=1.0), loss_scale).setup(model), model


def _loss_of(model):
    """Its gradient is 1."""
    return F.sum(model(np.ones((1, 1), np.float32)))


@pytest.mark.parametrize("loss_scale", [None, 8, "dynamic"])
def test_a_gradient_that_is_still_there_counts_again_as_in_chainer(loss_scale):
    """Promise 8: a second update without a backward pass divides by the same scale, though the scale has moved."""
    if loss_scale == "dynamic":
        loss_scale = mixprec.DynamicLossScale(init=8.0, interval=1)
    optimizer, model = _weight_of_zero(loss_scale)
    optimizer.update(lambda: _loss_of(model))
    for _ in range(2):
        optimizer.update()
    assert optimizer.master(model.W).array == -3
    assert dict(optimizer.unscaled_gradients()) == {"/W": 1.0}


def test_a_gradient_written_over_a_used_one_is_taken_as_it_is():
    """Also without ``cleargrads`` in between."""
    optimizer, model = _weight_of_zero(8)
    optimizer.update(lambda: _loss_of(model))
    model.W.grad = np.full((1, 1), 0.5, np.float16)
    optimizer.update()
    assert optimizer.master(model.W).array == -1.5


@pytest.mark.parametrize(
    "backward", [lambda o, m: o.scale_loss(_loss_of(m)).backward(), lambda o, m: _loss_of(m).backward()]
)
def test_cleargrads_ends_what_a_backward_pass_began(backward):
    """A gradient that is written after it has nothing to do with the pass before it, scaled or not."""
    optimizer, model = _weight_of_zero(8)
    model.cleargrads()
    backward(optimizer, model)
    model.cleargrads()
    model.W.grad = np.ones((1, 1), np.float16)
    optimizer.update()
    assert optimizer.master(model.W).array == -1


def _ours(optimizer, model):
    optimizer.scale_loss(_loss_of(model)).backward()


def _chainers(scale):
    return lambda optimizer, model: _loss_of(model).backward(loss_scale=scale)


def _written(optimizer, model):
    model.W.grad = np.ones((1, 1), np.float16)


SCALES = [
    (8, [_ours, _chainers(64.0)]),
    (8, [_chainers(64.0), _ours]),
    (8, [_written, _ours]),
    (None, [_chainers(8.0), _chainers(None)]),
    (None, [_chainers(None), _chainers(8.0)]),
]


@pytest.mark.parametrize(("loss_scale", "sources"), SCALES)
def test_gradients_of_different_scales_do_not_add_up(loss_scale, sources):
    """Promise 8: whoever scaled them; the weight stays as it was."""
    optimizer, model = _weight_of_zero(loss_scale)
    model.cleargrads()
    for source in sources:
        source(optimizer, model)
    with pytest.raises(UnscaledBackward, match="the gradient of /W has parts of different loss scales"):
        optimizer.update()
    assert optimizer.master(model.W).array == 0


def test_a_loop_that_forgets_cleargrads():
    """The old gradient has another scale than the new one."""
    optimizer, model = _weight_of_zero(mixprec.DynamicLossScale(init=8.0, interval=1))
    model.cleargrads()
    _ours(optimizer, model)
    optimizer.update()
    _ours(optimizer, model)
    with pytest.raises(UnscaledBackward, match=r"call model\.cleargrads\(\)"):
        optimizer.update()


def test_a_loss_is_scaled_once():
    optimizer = _wrapped()
    scaled = optimizer.scale_loss(optimizer.target(*_batch(0)))
    with pytest.raises(ValueError, match="the loss is scaled already"):
        optimizer.scale_loss(scaled)
    with pytest.raises(ValueError, match=r"backward\(loss_scale=\.\.\.\) of a loss that scale_loss"):
        scaled.backward(loss_scale=2.0)


# --- the public face


def test_a_loss_scale_may_be_said_in_many_ways():
    assert _wrapped().loss_scale == 2.0**16
    assert _wrapped(loss_scale=8).loss_scale == 8.0
    assert _wrapped(loss_scale=None).loss_scale == 1.0
    assert _wrapped(loss_scale=mixprec.StaticLossScale(4)).loss_scale == 4.0


@pytest.mark.parametrize("name", ["loss_scaling", "use_fp32_update", "check_nan_in_grads"])
def test_chainers_own_mechanisms_are_refused(name):
    with pytest.raises(AttributeError, match=f"{name} is not available"):
        getattr(_wrapped(), name)


def test_read_only_names_cannot_be_set():
    with pytest.raises(AttributeError, match="skipped of a MixedPrecisionOptimizer is read-only"):
        _wrapped().skipped = 0


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"optimizer must be a chainer\.GradientMethod; found str"):
        mixprec.MixedPrecisionOptimizer("SGD")
    with pytest.raises(TypeError, match="loss_scale must be"):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD(), "big")
    with pytest.raises(ValueError, match=r"loss_scale must be a positive power of two from .*; found 1000"):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 1000)
    with pytest.raises(ValueError, match="set up already"):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD().setup(Net()))
    with pytest.raises(RuntimeError, match="not set up"):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD()).update()
