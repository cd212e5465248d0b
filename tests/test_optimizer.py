"""MixedPrecisionOptimizer: masters, scaling, skipped steps, hooks and snapshots."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers, training

import mixprec


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


def _batch(step, poison=False):
    random = np.random.RandomState(step)
    x = random.normal(size=(8, 3, 6, 6)).astype(np.float32)
    if poison:
        x[0, 0, 0, 0] = np.inf
    return x, random.randint(0, 4, 8).astype(np.int32)


def _model(compute="float16"):
    np.random.seed(0)
    model = L.Classifier(Net())
    mixprec.convert(model, compute=compute)
    return model


def _wrapped(compute="float16", inner=None, loss_scale="dynamic"):
    inner = inner or optimizers.CorrectedMomentumSGD(lr=0.1)
    return mixprec.MixedPrecisionOptimizer(inner, loss_scale).setup(_model(compute))


def _run(optimizer, steps):
    for step in steps:
        optimizer.update(optimizer.target, *_batch(step))
    return optimizer


def _state(optimizer):
    """Everything that a step may change, as arrays by name."""
    saved = serializers.DictionarySerializer()
    optimizer.serialize(saved["optimizer"])
    optimizer.target.serialize(saved["model"])
    return {name: np.array(value) for name, value in saved.target.items()}


def _assert_same(left, right, but=()):
    assert left.keys() == right.keys()
    for name in left:
        if not name.startswith(tuple(but) or ("-",)):
            np.testing.assert_array_equal(left[name], right[name], err_msg=name, strict=True)


OWN = ("optimizer/mixprec/skipped", "optimizer/mixprec/last_step_skipped", "optimizer/mixprec/loss_scale")


@pytest.mark.parametrize("compute", ["float16", "float32"])
def test_loss_falls(compute):
    optimizer = _wrapped(compute)
    x, t = _batch(0)
    losses = []
    for _ in range(30):
        optimizer.update(optimizer.target, x, t)
        losses.append(float(optimizer.target.loss.array))
    assert losses[-1] < 0.5 * losses[0]
    assert optimizer.t == 30


def test_fp16_parameters_are_the_rounded_masters_and_never_reallocated():
    optimizer = _wrapped()
    conv = optimizer.target.predictor.conv.W
    array = conv.array
    _run(optimizer, range(3))
    assert conv.array is array
    assert array.dtype == np.float16
    assert optimizer.master(conv).dtype == np.float32
    np.testing.assert_array_equal(array, optimizer.master(conv).array.astype(np.float16))
    gamma = optimizer.target.predictor.bn.gamma
    assert optimizer.master(gamma) is gamma


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
        return 1.0 - float(optimizer.master(model.W).array[0, 0].astype(np.float64))

    assert moved(None) == 0
    # the master is 1, so that the update is rounded to a multiple of 2**-24; a larger step shows it
    assert moved(2.0**16) == pytest.approx(2.0**-30, abs=2.0**-24)


@pytest.mark.parametrize("loss_scale", [1, 8.0, 2.0**16, "dynamic"])
def test_a_power_of_two_does_not_change_an_fp32_run_at_all(loss_scale):
    plain = _model("float32")
    reference = optimizers.CorrectedMomentumSGD(lr=0.1).setup(plain)
    reference.add_hook(optimizer_hooks.WeightDecay(1e-3))
    scaled = _wrapped("float32", loss_scale=loss_scale)
    scaled.add_hook(optimizer_hooks.WeightDecay(1e-3))
    for step in range(5):
        reference.update(plain, *_batch(step))
        scaled.update(scaled.target, *_batch(step))
    for (name, expected), (_, found) in zip(plain.namedparams(), scaled.target.namedparams(), strict=True):
        np.testing.assert_array_equal(found.array, expected.array, err_msg=name)


@pytest.mark.parametrize(
    "hook",
    [
        optimizer_hooks.WeightDecay(0.01),
        optimizer_hooks.Lasso(0.01),
        optimizer_hooks.GradientClipping(0.01),
        optimizer_hooks.GradientHardClipping(-1e-3, 1e-3),
        optimizer_hooks.GradientLARS(),
    ],
    ids=lambda hook: hook.name,
)
def test_hooks_see_unscaled_fp32_gradients(hook):
    """The same masters at every scale, bit for bit, as long as nothing under- or overflows in FP16."""

    def masters(loss_scale):
        model = L.Linear(4, 3, initialW=np.linspace(-1, 1, 12, dtype="f").reshape(3, 4))
        mixprec.convert(model)
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.1), loss_scale).setup(model)
        optimizer.add_hook(hook)
        for step in range(3):
            for param in model.params():
                gradient = (np.arange(param.size) - 3).reshape(param.shape) * 2.0**-10 * (step + 1)
                param.grad = (gradient * optimizer.loss_scale).astype(np.float16)
            optimizer.update()
        return {name: optimizer.master(param).array.copy() for name, param in model.namedparams()}

    expected = masters(1)
    for loss_scale in (8, 1024, 65536):
        for name, array in masters(loss_scale).items():
            np.testing.assert_array_equal(array, expected[name], err_msg=f"{name} at {loss_scale}")


@pytest.mark.parametrize("loss_scale", ["dynamic", 1024, None])
@pytest.mark.parametrize("at", [0, 2])
def test_a_skipped_step_changes_nothing_but_the_scale_and_its_counters(loss_scale, at):
    """Also batch-norm statistics, also when the first step overflows; later steps are those of an undisturbed run."""
    disturbed, undisturbed = _wrapped(loss_scale=loss_scale), _wrapped(loss_scale=loss_scale)
    _run(disturbed, range(at))
    _run(undisturbed, range(at))
    before = _state(disturbed)
    disturbed.update(disturbed.target, *_batch(99, poison=True))
    assert disturbed.last_step_skipped
    assert disturbed.skipped == 1
    assert disturbed.t == at
    _assert_same(_state(disturbed), before, but=OWN)
    if loss_scale == "dynamic":
        assert disturbed.loss_scale == 2.0**15
        # bring the scales together: an FP16 gradient may round differently at another scale
        disturbed._scaler.value = undisturbed.loss_scale
    _run(disturbed, range(at, 5))
    _run(undisturbed, range(at, 5))
    assert not disturbed.last_step_skipped
    _assert_same(_state(disturbed), _state(undisturbed), but=OWN)


def test_patience_runs_out_with_an_error_that_names_the_parameters():
    optimizer = _wrapped(loss_scale=mixprec.DynamicLossScale(patience=2))
    optimizer.update(optimizer.target, *_batch(0, poison=True))
    with pytest.raises(mixprec.LossScaleExhausted, match=r"/predictor/conv/W"):
        optimizer.update(optimizer.target, *_batch(0, poison=True))


@pytest.mark.parametrize(
    "name",
    ["SGD", "MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "RMSprop", "RMSpropGraves", "AdaGrad", "AdaDelta"]
    + ["Adam", "AdamW", "AMSGrad", "AdaBound", "AMSBound", "SMORMS3", "MSVAG"],
)
def test_every_optimizer_of_chainer_resumes_bitwise(name, tmp_path):
    """Save, load into a fresh run and go on equals never having stopped: masters, state, scale, counters."""

    def new():
        scale = mixprec.DynamicLossScale(init=2.0**10, interval=2)
        return _wrapped(inner=getattr(optimizers, name)(), loss_scale=scale)

    interrupted = _run(new(), range(3))
    serializers.save_npz(tmp_path / "optimizer.npz", interrupted)
    serializers.save_npz(tmp_path / "model.npz", interrupted.target)
    resumed = new()
    resumed.target.predictor.conv.W.array[...] = 0  # whatever the initial weights are
    serializers.load_npz(tmp_path / "optimizer.npz", resumed)
    serializers.load_npz(tmp_path / "model.npz", resumed.target)
    _run(resumed, range(3, 6))
    _assert_same(_state(resumed), _state(_run(new(), range(6))))


@pytest.mark.parametrize("with_gradient", [True, False])
def test_a_write_into_a_live_parameter_reaches_the_master(with_gradient):
    optimizer = _run(_wrapped(), range(1))
    weight = optimizer.target.predictor.fc.W
    untouched = optimizer.master(weight).array[1].copy()
    weight.array[0] = 0.25
    weight.grad = np.zeros_like(weight.array) if with_gradient else None
    optimizer.lr = 0.0
    optimizer.update()
    np.testing.assert_array_equal(optimizer.master(weight).array[0], 0.25)
    np.testing.assert_array_equal(optimizer.master(weight).array[1], untouched)


def test_a_hand_written_loop_is_the_same_step():
    by_hand, by_update = _wrapped(), _wrapped()
    for step in range(3):
        model = by_hand.target
        loss = model(*_batch(step))
        model.cleargrads()
        by_hand.scale_loss(loss).backward()
        by_hand.update()
    _assert_same(_state(by_hand), _state(_run(by_update, range(3))))


def test_lazy_parameters_those_without_gradient_and_disabled_rules():
    model = chainer.ChainList(L.Linear(None, 2), L.Linear(3, 2), L.Linear(3, 2))
    mixprec.convert(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), 8).setup(model)
    model[2].disable_update()
    before = [link.W.array.copy() for link in (model[1], model[2])]
    x = np.ones((2, 3), np.float32)
    for _ in range(2):
        optimizer.update(lambda: F.sum(model[0](x)) + F.sum(model[2](x)))
    assert model[0].W.dtype == np.float16
    np.testing.assert_array_equal(model[1].W.array, before[0])
    np.testing.assert_array_equal(model[2].W.array, before[1])
    assert optimizer.master(model[0].W).update_rule is model[0].W.update_rule
    assert model[0].W.update_rule.t == 2


def test_it_passes_for_the_wrapped_optimizer():
    """Hyperparameters, schedules and Chainer's own trainer extensions reach through."""
    optimizer = _wrapped()
    assert optimizer.lr == 0.1
    shift = training.extensions.ExponentialShift("lr", 0.5, init=0.4, optimizer=optimizer)
    shift.initialize(None)
    assert optimizer.lr == pytest.approx(0.4)
    optimizer.momentum = 0.5
    assert optimizer.target.predictor.fc.W.update_rule.hyperparam.momentum == 0.5
    optimizer.new_epoch()
    assert optimizer.epoch == 1


@pytest.mark.parametrize("name", ["loss_scaling", "set_loss_scale", "use_fp32_update"])
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
    with pytest.raises(ValueError, match="set up already"):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD().setup(Net()))
    with pytest.raises(RuntimeError, match="not set up"):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD()).update()
