"""The wrapper with the batched update of a device: its kernels, compiled for the host, on stand-ins for arrays."""

import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.optimizer import running_statistics
from tests.cases import first
from tests.optimizer.batch.chainer_rules import OPTIMIZERS
from tests.stand_ins import device_runs, device_stand_in


def _run(optimizer, steps, place=device_stand_in.array, by_hand=False):
    for step in steps:
        device_runs.run_step(optimizer, step, place, by_hand=by_hand)


# --- a step


RULES = [(name, place % 2 == 1) for place, name in enumerate(["ScheduleFreeSGD", *reversed(OPTIMIZERS), "SGDW"])]


@pytest.mark.parametrize(("name", "by_hand"), first(6, RULES))
def test_a_step_reads_nothing_and_is_that_of_the_host(name, by_hand, reads):
    """Promises 2 and 10: all rules of Chainer's, overflowing steps, the first among them; bit for bit."""
    hooks = [optimizer_hooks.WeightDecay(0.01), optimizer_hooks.Lasso(0.001)]
    hooks.append(optimizer_hooks.GradientHardClipping(-1, 1))
    optimizer = device_runs.new_optimizer(name, device_stand_in.send, hooks)
    _run(optimizer, range(6), by_hand=by_hand)
    assert reads() == 0
    # A power is beta ** 4 here, and a product of four there.
    device_runs.assert_same_run(optimizer, name, hooks, rtol=1e-15 if name == "MSVAG" else 0)


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_rules_with_norms(name, reads):
    """The sums of squares are added in another order than on NumPy."""
    optimizer = device_runs.new_optimizer(name, device_stand_in.send)
    _run(optimizer, range(6))
    assert reads() == 0
    device_runs.assert_same_run(optimizer, name, (), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 20])
def test_two_launches_whatever_the_number_of_parameters(layers, launcher):
    """And one upload, for the addresses of the gradients."""
    model = chainer.Sequential(*(L.Linear(3, 3) for _ in range(layers)))
    mixprec.convert(model, **device_runs.CHAINERS)
    device_stand_in.send(model)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam()).setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(0.01))
    for step in range(3):
        launcher.launches.clear()
        launcher.uploads.clear()
        for param in model.params():
            param.grad = device_stand_in.array(np.full(param.shape, 0.01 * step, param.dtype))
        optimizer.alpha = 0.1 / (1 + step)
        optimizer.update()
        assert len(launcher.launches) == 2
        assert len(launcher.uploads) == 1


def test_statistics_of_a_skipped_step_come_back_without_a_launch(launcher, monkeypatch):
    """Promise 2: the update kernel copies them back, whatever their dtype; shared ones from the first copy."""

    class Counting(L.BatchNormalization):
        def __init__(self, size):
            super().__init__(size)
            self.seen = np.zeros(3, np.int16)
            self.register_persistent("seen")

        def forward(self, x):
            self.seen[...] = self.seen + 1
            return super().forward(x)

    monkeypatch.setattr(running_statistics, "restore", None)
    model = chainer.Sequential(L.Linear(6, 5), Counting(5), Counting(5))
    model[2].avg_mean = model[1].avg_mean
    mixprec.convert(model, **device_runs.CHAINERS)
    device_stand_in.send(model)
    model[2].avg_mean = model[1].avg_mean
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), 8).setup(model)
    for batch, count in ((1, 1), (3, 1), (2, 2)):  # the second one is poisoned
        before = [np.array(link.__dict__[name]) for link in model[1:] for name in ("avg_mean", "avg_var", "seen")]
        launcher.launches.clear()
        optimizer.update(lambda x: F.sum(F.square(model(x))), device_runs.batch_of(batch, device_stand_in.array))
        assert len(launcher.launches) == 2
        after = [np.array(link.__dict__[name]) for link in model[1:] for name in ("avg_mean", "avg_var", "seen")]
        assert optimizer.last_step_skipped == (batch == 3)
        same = {np.array_equal(*pair) for pair in zip(before, after, strict=True)}
        assert same == {batch == 3}
        assert model[1].seen.tolist() == [count] * 3


def test_gradients_of_two_scales(launcher):
    """One that was written, as it is, beside those of a scaled backward pass."""
    optimizer = device_runs.new_optimizer("SGD", device_stand_in.send)
    model, lr = optimizer.target, optimizer.lr
    before = np.array(optimizer.master(model.out.b).array)
    model.cleargrads()
    optimizer.scale_loss(F.sum(model.hidden(device_runs.batch_of(1, device_stand_in.array)))).backward()
    model.out.b.grad = device_stand_in.array(np.array([2, 4], np.float16))
    optimizer.update()
    gradient = 8 * np.ones(5, np.float32)
    np.testing.assert_array_equal(optimizer.master(model.out.b).array, before - np.float32(lr) * np.float32([2, 4]))
    np.testing.assert_array_equal(optimizer.master(model.hidden.b).array, -np.float32(lr) * gradient)


def test_zero_gradients(launcher):
    """They are zeros after every step, and what they are added to in the next needs no cleargrads()."""

    def run(place, array, **wishes):
        np.random.seed(0)
        model = chainer.Sequential(L.Linear(6, 5), L.Linear(5, 2))
        mixprec.convert(model, **device_runs.CHAINERS)
        place(model)
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(), 8, **wishes).setup(model)
        for step in range(4):
            if not wishes:
                model.cleargrads()
            with np.errstate(invalid="ignore"):
                optimizer.scale_loss(F.sum(F.square(model(device_runs.batch_of(step, array))))).backward()
            optimizer.update()
            for param in model.params():
                assert wishes == {} or not np.asarray(param.grad).any()
        return device_runs.state_of(optimizer)

    expected = run(device_runs.stay_on_host, np.array)
    for found in (
        run(device_runs.stay_on_host, np.array, zero_gradients=True),
        run(device_runs.stay_on_host, np.array, zero_gradients=True, batched=False),
        run(device_stand_in.send, device_stand_in.array, zero_gradients=True),
    ):
        for key in expected:
            np.testing.assert_array_equal(found[key], expected[key], err_msg=key)


# --- over several steps


def test_who_asks_reads(reads):
    """Each when somebody asks; ``t`` only if steps are outstanding."""
    optimizer = device_runs.new_optimizer("Adam", device_stand_in.send)
    _run(optimizer, range(4))
    assert reads() == 0
    for number, (attribute, value) in enumerate(
        [("loss_scale", 2.0**7), ("skipped", 2), ("last_step_skipped", True), ("t", 2)], start=1
    ):
        assert getattr(optimizer, attribute) == value
        assert reads() == number
    assert optimizer.t == 2
    assert reads() == 4
    assert {param.update_rule.t for param in optimizer.target.params()} == {2}


def test_the_set_of_updated_parameters_changes(reads):
    """One read then, so that every rule's ``t`` counts the steps it took part in."""
    optimizer = device_runs.new_optimizer("Adam", device_stand_in.send)
    out = optimizer.target.out
    _run(optimizer, range(2))
    out.disable_update()
    _run(optimizer, range(2, 4))
    assert reads() == 1
    out.enable_update()
    _run(optimizer, range(4, 6))
    assert reads() == 2
    assert optimizer.t == 4
    assert out.W.update_rule.t == 3
    assert optimizer.target.hidden.W.update_rule.t == 4


def test_the_base_of_a_power_that_changes(reads):
    """MSVAG multiplies its power by each step's own beta: the steps with another one are counted, and read, before."""

    def run(place, array):
        optimizer = device_runs.new_optimizer("MSVAG", place)
        for step in range(6):
            optimizer.beta = 0.9 - 0.1 * (step // 2)
            device_runs.run_step(optimizer, step, array)
        return optimizer

    found = run(device_stand_in.send, device_stand_in.array)
    assert reads() == 2
    found.beta = 0.1  # later than the last step
    expected = device_runs.state_of(run(device_runs.stay_on_host, np.array))
    for key, value in device_runs.state_of(found).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("exponent", [-80, 70])
def test_norms_of_gradients_whose_squares_float32_does_not_hold(exponent, launcher):
    """The trust ratio of LARS makes the step independent of the size of the gradient, on a device as on NumPy."""

    def run(place, array, size):
        link = chainer.Link()
        with link.init_scope():
            link.w = chainer.Parameter(np.linspace(-1, 1, 12, dtype=np.float32))
        optimizer = mixprec.MixedPrecisionOptimizer(mixprec.LARS(lr=0.5, eps=0), None).setup(place(link))
        link.w.grad = array(np.linspace(1, 2, 12, dtype=np.float32) * np.float32(size))
        optimizer.update()
        return np.array(link.w.array)

    found = run(device_stand_in.send, device_stand_in.array, 2.0**exponent)
    np.testing.assert_allclose(found, run(device_runs.stay_on_host, np.array, 1), rtol=1e-6)


def test_a_rule_that_is_unknown_updates_its_parameter_alone(reads, caplog):
    """One flag is read in every step, for its ``t``; the other parameters are in the batch."""

    class Halved(optimizers.sgd.SGDRule):
        def update_core(self, param):
            param.array -= param.array.dtype.type(0.01 / self.t) * param.grad

    def run(place, array):
        optimizer = device_runs.new_optimizer("Adam", place)
        optimizer.target.out.W.update_rule = Halved(lr=0.1)
        _run(optimizer, range(6), array)
        return optimizer

    found = run(device_stand_in.send, device_stand_in.array)
    assert reads() == 6
    (record,) = caplog.records
    words = "1 of 6 parameters are not in the batched update (update.fused), /out/W one by one: the rule Halved is"
    assert words in record.message
    assert found.report().batched == 5
    expected = device_runs.state_of(run(device_runs.stay_on_host, np.array))
    for key, value in device_runs.state_of(found).items():
        np.testing.assert_array_equal(value, expected[key], err_msg=key)
    assert found.t == 4
    assert {param.update_rule.t for param in found.target.params()} == {4}


def test_a_hook_that_is_unknown_puts_all_parameters_in_chainers_hands(reads):
    optimizer = device_runs.new_optimizer("SGD", device_stand_in.send)
    _run(optimizer, range(3))
    optimizer.add_hook(lambda optimizer: None, name="mine")
    assert reads() == 0
    _run(optimizer, range(3, 6))
    assert optimizer.report().batched == 0
    assert (optimizer.t, optimizer.skipped) == (4, 2)
    device_runs.assert_same_run(optimizer, "SGD", ())


def test_a_parameter_that_is_initialized_late(launcher):
    def run(place, array):
        np.random.seed(0)
        model = chainer.Sequential(L.Linear(6, 5), L.Linear(None, 2))
        mixprec.convert(model, **device_runs.CHAINERS)
        optimizer = mixprec.MixedPrecisionOptimizer(optimizers.Adam(), 8).setup(place(model))
        optimizer.update(lambda x: F.sum(model[0](x)), device_runs.batch_of(1, array))
        model[1].W.initialize((2, 5))
        model[1].W.array = array(model[1].W.array)
        _run(optimizer, [2, 3, 4], array)
        return optimizer

    found, expected = run(device_stand_in.send, device_stand_in.array), run(device_runs.stay_on_host, np.array)
    for key, value in device_runs.state_of(expected).items():
        np.testing.assert_array_equal(device_runs.state_of(found)[key], value, err_msg=key)
    assert found.target[1].W.update_rule.t == 3  # as in Chainer, which counts before there is anything to update


@pytest.mark.parametrize("how", ["snapshot", "deepcopy"])
def test_saved_loaded_and_gone_on_with(how, launcher):
    """Promise 5, and the counters on the device among it."""
    straight = device_runs.new_optimizer("Adam", device_stand_in.send)
    _run(straight, range(6))
    broken = device_runs.new_optimizer("Adam", device_stand_in.send)
    _run(broken, range(4))
    if how == "deepcopy":
        resumed = copy.deepcopy(broken)
    else:
        saved = serializers.DictionarySerializer()
        broken.serialize(saved["optimizer"])
        broken.target.serialize(saved["model"])
        files = {name: np.asarray(value) for name, value in saved.target.items()}
        resumed = device_runs.new_optimizer("Adam", device_stand_in.send)
        serializers.NpzDeserializer(files)["model"].load(resumed.target)
        serializers.NpzDeserializer(files)["optimizer"].load(resumed)
    _run(resumed, range(4, 6))
    found, expected = device_runs.state_of(resumed), device_runs.state_of(straight)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key], err_msg=key)


def test_to_the_host_in_mid_run(launcher):
    optimizer = device_runs.new_optimizer("Adam", device_stand_in.send)
    _run(optimizer, range(3))
    for param in optimizer.target.params():
        master = optimizer._masters.of(param)
        param.array = param.array.view(np.ndarray)
        master.array[...] = master.array  # stays where it is: the stand-in's device is NumPy's
        param._mixprec_master_array = (id(param), master.array.view(np.ndarray))
        param.cleargrad()
    for link in optimizer.target.links():
        for name in link._persistent:
            link.__dict__[name] = np.asarray(link.__dict__[name])
    for state in (param.update_rule.state for param in optimizer.target.params()):
        state.update({name: array.view(np.ndarray) for name, array in state.items()})
    _run(optimizer, range(3, 6), np.array)
    device_runs.assert_same_run(optimizer, "Adam", ())


CONSTANT = [(mixprec.NoLossScale(patience=4), False), (mixprec.StaticLossScale(2.0**8, patience=4), True)]


@pytest.mark.parametrize(("scale", "batched"), CONSTANT)
def test_patience_of_a_constant_scale_on_the_device(reads, scale, batched):
    """The kernel that updates counts in place, and the host looks when patience may have run out."""
    optimizer = device_runs.new_optimizer("SGD", device_stand_in.send, scale=copy.deepcopy(scale), batched=batched)
    _run(optimizer, [1])
    (count,) = optimizer._scaler.arrays
    _run(optimizer, (1, 3))
    assert reads() == 0
    _run(optimizer, (3, 3))
    assert (optimizer._scaler.arrays[0] is count) == batched
    assert optimizer._scaler.overflows_in_row == 3
    with pytest.raises(mixprec.LossScaleExhausted, match="4 steps in a row"):
        _run(optimizer, [3])
