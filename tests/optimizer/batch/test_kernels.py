"""The batched update of a device: its CUDA source, run on the host, beside Chainer's own update on NumPy."""

import dataclasses
import re
import types
import weakref
from itertools import chain

import chainer
import numpy as np
import pytest
from chainer import optimizer_hooks
from scipy import stats

import mixprec
from mixprec.base.dtypes import BFLOAT16
from mixprec.optimizer.batch.device_batch import DeviceBatch
from mixprec.optimizer.batch.kernel_program import source_of
from mixprec.precision.step_counter import StepCounter
from tests.cases import first
from tests.stand_ins.device_stand_in import array
from tests.stand_ins.host_launch import HostLauncher
from tests.stand_ins.update_twin import HOOKS, SIZES, STEPS, Twin, closely, exactly, of_all_rules, run


@pytest.fixture
def launcher():
    return HostLauncher()


def parameter(array, grad):
    """What the batched update looks at of a parameter, for arrays that Chainer would not take."""
    return types.SimpleNamespace(_data=[array], _grad=grad, _grad_var=None, array=array, grad=grad)


def receive(value):
    return np.asarray(value)


def twin(launcher, params, hooks=(), rule_hooks=(), seed=0):
    return Twin(launcher, array, receive, params, hooks, rule_hooks, seed)


@pytest.mark.parametrize("hooks", first(2, ["decay and clipping", "lasso and hard clipping", "none", "lars and decay"]))
def test_all_rules_with_hooks_are_chainers(launcher, hooks):
    both = twin(launcher, of_all_rules(), HOOKS[hooks])
    run(both, closely if hooks in ("decay and clipping", "lars and decay") else exactly)
    assert len(launcher.launches) == (both.batch._passes + 1) * STEPS


WITH_NORMS = [
    ("SGD", [], 2),
    ("SGD", [optimizer_hooks.GradientClipping(1.0)], 2),
    ("SGD", [optimizer_hooks.WeightDecay(0.01), optimizer_hooks.GradientLARS()], 2),
    ("SGD", [optimizer_hooks.GradientClipping(1.0), optimizer_hooks.Lasso(0.01)], 3),
    ("SGD", [optimizer_hooks.GradientLARS(), optimizer_hooks.GradientClipping(1.0)], 3),
    ("LARS", [], 2),
    ("LAMB", [], 2),
    ("LARS", [optimizer_hooks.GradientClipping(1.0)], 3),
]


@pytest.mark.parametrize(("rule", "hooks", "launches"), WITH_NORMS)
def test_launches_of_hooks_and_rules_with_norms(launcher, rule, hooks, launches):
    both = twin(launcher, [(rule, 5, np.float16), *[("SGD", 5, np.float16)] * 7], hooks)
    for _ in range(2):
        both.set_gradients(both.gradients())
        both.batch.check()
        both.batch.update()
    assert len(launcher.launches) == 2 * launches == 2 * (both.batch._passes + 1)


def test_the_table_is_uploaded_as_far_as_it_changed(launcher):
    both = twin(launcher, [("Adam", size, dtype) for size in SIZES for dtype in (np.float16, np.float32)])
    factor = array(np.float32(2))

    def uploaded():
        launcher.uploads.clear()
        both.batch.check([factor] * len(both.entries))
        both.batch.update()
        return list(launcher.uploads)

    both.set_gradients(both.gradients())
    (everything,) = uploaded()
    assert uploaded() == []  # the same gradients once more
    kept = [entry.param.grad for entry in both.entries]
    both.set_gradients(both.gradients())
    (part,) = uploaded()
    assert part < everything
    both.optimizers["Adam"].alpha = 0.5
    assert uploaded() == [part]
    both.batch.settle()
    assert uploaded() == [part]  # t
    entry = both.entries[0]
    entry.master.array = entry.master.array.copy()
    assert uploaded() == [everything]
    entry.rule.state["m"] = entry.rule.state["m"].copy()
    assert uploaded() == [everything]
    assert uploaded() == []
    del kept


def test_hyperparameters_are_never_stale(launcher):
    """Whoever they come from: the optimizer, the rule, another parent, an attribute of the rule."""
    both = twin(launcher, [("MomentumSGD", 5, np.float16)] * 4 + [("Adam", 5, np.float16)] * 2)
    rules = [entry.rule for entry in both.entries]
    references = [param.update_rule for param in both._references()]

    def step():
        gradients = both.gradients()
        both.set_gradients(gradients)
        expected = both.expect(gradients, 1)
        assert not receive(both.batch.check())
        both.batch.update()
        both.batch.settle()
        exactly(both, expected, None)

    def change(what):
        for own in (rules, references):
            what(own)
        step()

    step()
    both.optimizers["MomentumSGD"].lr = 0.5
    step()
    change(lambda own: setattr(own[1].hyperparam, "lr", 0.25))
    change(lambda own: setattr(own[1].hyperparam, "lr", 0.125))
    change(lambda own: delattr(own[1].hyperparam, "lr"))
    other = chainer.optimizers.MomentumSGD(lr=0.75).hyperparam
    change(lambda own: setattr(own[0].hyperparam, "_parent", other))
    change(lambda own: setattr(own[2], "hyperparam", own[0].hyperparam))
    other.lr = 0.5
    step()
    change(lambda own: setattr(own[4], "t", 5))
    change(lambda own: setattr(own[3], "_state", None))


def test_a_state_that_was_taken_away_begins_afresh(launcher):
    both = twin(launcher, [("MomentumSGD", 5, np.float32), ("SGD", 5, np.float32)])
    for _ in range(2):
        gradients = both.gradients()
        both.set_gradients(gradients)
        both.entries[0].rule._state = None
        expected = both.expect(gradients, 1)
        both.entries[0].rule._state = None
        both.batch.check()
        both.batch.update()
        exactly(both, expected, None)


def test_an_upload_that_fails_is_made_up_for(launcher, monkeypatch):
    both = twin(launcher, [("SGD", 5, np.float32)])
    gradients = both.gradients()
    both.set_gradients(gradients)
    expected = both.expect(gradients, 1)

    def fail(source, target):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(launcher, "upload", fail)
        with pytest.raises(MemoryError):
            both.batch.check()
    both.batch.check()
    both.batch.update()
    exactly(both, expected, None)


def test_gradients_are_not_kept_alive(launcher):
    both = twin(launcher, [("SGD", 5, np.float16)])
    both.set_gradients(both.gradients())
    gradient = weakref.ref(both.entries[0].param.grad)
    both.batch.check()
    both.batch.update()
    both.entries[0].param.cleargrad()
    assert gradient() is None


def test_arrays_that_are_not_aligned():
    """Views into other arrays. An access that is not aligned to its size, an error on a GPU, ends the process here."""
    flags = ("-ffp-contract=off", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
    launcher = HostLauncher(flags)

    def send(value):
        buffer = array(np.zeros(value.size + 3, value.dtype))
        view = buffer[3:].reshape(value.shape)
        view[...] = value
        return view

    dtypes = (np.float16, BFLOAT16, np.float32)
    both = Twin(launcher, send, receive, [("Adam", size, dtype) for size in SIZES for dtype in dtypes])
    run(both, exactly, steps=3, skipped={1})


@pytest.mark.parametrize("skip", [False, True])
def test_zero_gradients_also_if_skipped(launcher, skip):
    both = twin(launcher, [("SGD", size, dtype) for size in SIZES for dtype in (np.float16, BFLOAT16, np.float32)])
    both.set_gradients(both.gradients(missing={2}))
    before = both.masters()
    both.batch.check()
    both.batch.update(skip=array(skip), zero_gradients=True)
    for place, entry in enumerate(both.entries):
        assert place == 2 or not receive(entry.param.grad).any()
        changed = not np.array_equal(before[place], both.masters()[place])
        assert changed == (not skip and place != 2)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_what_is_written_into_a_copy_reaches_its_master(launcher, dtype):
    hooks = [optimizer_hooks.WeightDecay(0.1)]
    both = twin(launcher, [("MomentumSGD", size, dtype) for size in SIZES], hooks)
    for step in range(3):
        for entry in both.entries:
            entry.param.array[::3] = step + 0.5
        gradients = both.gradients()
        both.set_gradients(gradients)
        expected = both.expect(gradients, 1)
        both.batch.check()
        both.batch.update()
        exactly(both, expected, None)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_an_inf_in_a_copy_is_seen_by_hooks(launcher, dtype):
    both = twin(launcher, [("SGD", 9, dtype)], [optimizer_hooks.WeightDecay(0.1)])
    both.entries[0].param.array[4] = np.inf
    both.set_gradients(both.gradients())
    assert receive(both.batch.check())


@pytest.mark.parametrize(("dtype", "value", "size"), [(np.float16, 1e6, 1), (BFLOAT16, 3.4e38, 4099)])
def test_a_master_is_looked_at_where_its_copy_does_not_tell(launcher, dtype, value, size):
    """Beyond 65,504 a float16 copy is inf and its master is not, which is what takes part."""
    both = twin(launcher, [("SGD", size, dtype)], [optimizer_hooks.WeightDecay(0.5)])
    both.entries[0].master.array[size - 1] = value
    both.entries[0].param.array[size - 1] = np.inf
    gradients = both.gradients()
    both.set_gradients(gradients)
    with np.errstate(over="ignore"):
        expected = both.expect(gradients, 1)
    assert not receive(both.batch.check())
    both.batch.update()
    exactly(both, expected, None)


def test_several_factors(launcher):
    both = twin(launcher, [("SGD", 40, np.float16)] * 5)
    factors = [None, 1, array(np.float32(256)), array(np.float64(0.25)), 64.0]
    scales = [1, 1, 256, 0.25, 64]
    gradients = both.gradients()
    both.set_gradients(gradients)
    scaled = [gradient.astype(np.float32) / scale for gradient, scale in zip(gradients, scales, strict=True)]
    expected, _ = both.expect(scaled, 1)
    both.batch.check(factors)
    both.batch.update()
    for found, wanted in zip(both.masters(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_parameters_that_are_only_checked(launcher):
    """Not updated, but an inf in one of them skips the step, and clipping takes them in."""
    hooks = [optimizer_hooks.GradientClipping(0.1)]
    both = twin(launcher, [("SGD", 40, np.float16), (None, 4099, np.float16)], hooks)
    gradients = both.gradients()
    both.set_gradients(gradients)
    frozen = both.copies()[1].tobytes(), both.masters()[1].tobytes()
    expected, _ = both.expect(gradients, 1)
    both.batch.check()
    both.batch.update()
    np.testing.assert_allclose(both.masters()[0], expected[0], rtol=1e-6)
    assert (both.copies()[1].tobytes(), both.masters()[1].tobytes()) == frozen
    gradients[1][4098] = np.inf
    both.set_gradients(gradients)
    assert receive(both.batch.check())


@pytest.mark.parametrize("overflows", ["100110", "000000", "111111", "010010"])
@pytest.mark.parametrize("limits", [{"floor": None, "cap": None}, {"floor": 2.0, "cap": 8.0}])
def test_loss_scale_and_counters_advance_as_on_the_host(launcher, overflows, limits):
    host = mixprec.DynamicLossScale(init=4.0, interval=2, hysteresis=2, **limits)
    device = mixprec.DynamicLossScale(init=4.0, interval=2, hysteresis=2, **limits)
    counter, on_host = StepCounter(), StepCounter()
    for each in (device, counter):
        each.held_by(array)
    both = twin(launcher, [("SGD", 9, np.float16)])
    for number, overflow in enumerate(overflows):
        both.set_gradients([np.full(9, np.inf if overflow == "1" else 1, np.float16)])
        both.batch.check([device.arrays[0]])
        both.batch.update(scaler=device, counter=counter)
        for there, here in ((device, host), (counter, on_host)):
            here.adjust(overflow == "1")
            for name, value, expected in zip(here.state, there.arrays, here.arrays, strict=True):
                assert receive(value) == expected, (number, name)
                assert value.dtype == expected.dtype
        assert receive(counter.arrays[0]) == overflows[: number + 1].count("1")
        assert receive(counter.arrays[1]) == (overflow == "1")


def test_a_skip_for_another_reason_counts(launcher):
    both = twin(launcher, [("Adam", 9, np.float16)])
    both.set_gradients(both.gradients())
    counter = StepCounter()
    for _ in range(5):
        counter.adjust(True)
    counter.held_by(array)
    before = both.everything()
    both.batch.check()
    both.batch.update(skip=array(np.bool_(True)), counter=counter)
    assert (int(receive(counter.arrays[0])), bool(receive(counter.arrays[1]))) == (6, True)
    assert [value.tobytes() for value in both.everything()] == [value.tobytes() for value in before]
    assert both.batch.settle() == 0


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32])
def test_one_element_that_is_not_finite_is_seen_wherever_it_is(launcher, dtype):
    """Each thread of a block has a say, in each block, also in the last, smaller one."""
    size, chunk = 2 * launcher.chunk + 37, launcher.chunk
    both = twin(launcher, [("SGD", 9, np.float16), ("SGD", size, dtype)])
    gradients = both.gradients()
    for place in (0, 1, 8, chunk // 2 + 5, chunk - 1, chunk, 2 * chunk + 20, size - 1):
        for value in (np.inf, -np.inf, np.nan):
            spoiled = [gradients[0], gradients[1].copy()]
            spoiled[1][place] = value
            both.set_gradients(spoiled)
            assert receive(both.batch.check()), (place, value)
    both.set_gradients(gradients)
    assert not receive(both.batch.check())


UNFIT = [
    (array(np.zeros(8, np.float16)), "the gradient of p0 is float16 of shape (8,)"),
    (array(np.zeros(9, np.float32)), "the gradient of p0 is float32 of shape (9,)"),
    (np.zeros(9, np.float16), "the gradient of p0 is not on the device"),
]


@pytest.mark.parametrize(("gradient", "message"), UNFIT)
def test_a_gradient_that_does_not_fit_is_an_error(launcher, gradient, message):
    both = twin(launcher, [("SGD", 9, np.float16)])
    param = parameter(both.entries[0].param.array, gradient)
    batch = DeviceBatch([dataclasses.replace(both.entries[0], param=param)], launcher)
    with pytest.raises(ValueError, match=re.escape(message)):
        batch.check()
    with pytest.raises(RuntimeError, match="check"):
        batch.update()


def test_arrays_that_do_not_fit_are_errors(launcher):
    both = twin(launcher, [("MomentumSGD", (4, 5), np.float16)])
    both.set_gradients(both.gradients())
    both.batch.check()
    rule, master = both.entries[0].rule, both.entries[0].master
    right = master.array
    for array_, message in [
        (array(np.zeros((5, 4), np.float32)).T, "p0: its array has its axes in another order in memory than its mast"),
        (np.zeros((4, 5), np.float32), "p0: its master is not on the device"),
        (array(np.zeros((4, 5), np.float64)), "p0: its master has dtype float64; it must be float32"),
    ]:
        master._data = [array_]
        with pytest.raises(ValueError, match=re.escape(message)):
            both.batch.check()
    master._data = [right]
    rule.state["v"] = array(np.zeros(20, np.float32))
    with pytest.raises(ValueError, match=re.escape("p0: a state of its rule has shape (20,), its master (4, 5)")):
        both.batch.check()


def test_a_float32_parameter_shares_its_array_with_its_master(launcher):
    both = twin(launcher, [("SGD", 9, np.float32)])
    param = chainer.Parameter(both.entries[0].master.array)
    param.grad = array(both.gradients()[0])
    batch = DeviceBatch([dataclasses.replace(both.entries[0], param=param)], launcher)
    expected, _ = both.expect([receive(param.grad)], 1)
    batch.check()
    batch.update()
    np.testing.assert_array_equal(receive(param.array), expected[0])
    param.array = param.array.copy()
    with pytest.raises(ValueError, match="p0: it is in float32, but its master has another array"):
        batch.check()


def noise_of(launcher, seed=1, steps=1, sizes=(40_003, 40_003), hooks=None, send=array):
    """What GradientNoise makes of gradients that are zero, in units of its standard deviation, step by step."""
    hooks = [optimizer_hooks.GradientNoise(0.25)] if hooks is None else hooks
    both = Twin(launcher, send, receive, [("SGD", size, np.float32) for size in sizes], hooks)
    both.optimizers["SGD"].lr = 1
    batch = DeviceBatch(both.entries, launcher, seed)
    found = []
    for t in range(steps):
        for entry in both.entries:
            entry.param.array[...] = 0
            entry.param.cleargrad()
        batch.check()
        batch.update()
        found.append([-master / np.sqrt(0.25 / (1 + t) ** 0.55) for master in both.masters()])
    return found


def test_noise_is_normal_and_independent(launcher):
    ((first, second), (later, _)) = noise_of(launcher, steps=2)
    (other, _), *_ = noise_of(launcher, seed=2)
    for noise in (first, second, later, other):
        assert stats.kstest(noise, "norm").pvalue > 1e-3
        assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.02
    for one, two in [(first, second), (first, later), (first, other)]:
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.02


def test_noise_depends_on_seed_parameter_element_and_step_only(launcher):
    def misaligned(value):
        view = array(np.zeros(value.size + 1, value.dtype))[1:]
        view[...] = value
        return view

    expected = noise_of(launcher, steps=2)
    for found in (noise_of(launcher, steps=2), noise_of(launcher, steps=2, send=misaligned)):
        for one, two in zip(chain(*expected), chain(*found), strict=True):
            np.testing.assert_array_equal(one, two)
    shorter = noise_of(launcher, sizes=(5_001, 40_003))
    np.testing.assert_array_equal(shorter[0][0], expected[0][0][:5_001])
    np.testing.assert_array_equal(shorter[0][1], expected[0][1])


def test_noise_is_the_same_in_all_launches_of_a_step(launcher):
    """The norm is found in the first, and used in the last."""
    hooks = [optimizer_hooks.GradientNoise(0.25), optimizer_hooks.GradientClipping(2.0)]
    ((first, second),) = noise_of(launcher, hooks=hooks)
    norm = np.sqrt(np.sum(np.square(first, dtype=np.float64)) + np.sum(np.square(second, dtype=np.float64)))
    assert norm * np.sqrt(0.25) == pytest.approx(2.0, rel=1e-6)


def test_noise_of_a_rule_counts_the_step(launcher):
    """The step's t is 1 for a hook of a rule, and 0 for one of the optimizer; the random numbers are the same."""
    hook = optimizer_hooks.GradientNoise(0.25)
    found = []
    for hooks in ({"hooks": [hook]}, {"rule_hooks": [hook]}):
        both = Twin(launcher, array, receive, [("SGD", 4099, np.float32)], **hooks)
        both.optimizers["SGD"].lr = 1
        both.entries[0].param.array[...] = 0
        both.set_gradients([None])
        both.batch.check()
        both.batch.update()
        found.append(both.masters()[0])
    np.testing.assert_allclose(found[0], found[1] * 2 ** (0.55 / 2), rtol=1e-6)


@pytest.mark.parametrize("eps", [0.0, 1e-9])
def test_a_norm_that_spoils_gradients_skips_the_step(launcher, eps):
    """GradientLARS without eps divides by the norm of a gradient of zeros: Chainer's masters would become NaN."""
    both = twin(launcher, [("SGD", 9, np.float16)], [optimizer_hooks.GradientLARS(weight_decay=0.0, eps=eps)])
    both.set_gradients([None])
    before = both.masters()[0]
    assert bool(receive(both.batch.check())) == (eps == 0)
    both.batch.update()
    np.testing.assert_array_equal(both.masters()[0], before)


def test_gradients_that_overflow_in_a_hook_skip_the_step(launcher):
    for hooks in (
        [optimizer_hooks.WeightDecay(1e38)],
        [optimizer_hooks.GradientLARS(), optimizer_hooks.WeightDecay(1e38)],
    ):
        both = twin(launcher, [("SGD", 4099, np.float32)], hooks)
        both.set_gradients(both.gradients())
        both.entries[0].master.array[4098] = 100
        assert receive(both.batch.check())


def test_small_gradients_and_parameters_are_safe_from_every_elementwise_hook(launcher):
    """The limits below which a check runs no hook: at them nothing overflows."""
    source = source_of((), launcher.threads, launcher.chunk)
    number, param, grad = (
        2.0 ** int(re.search(rf"SMALL_{name} = 0x1p(\d+)f", source)[1]) for name in ("NUMBER", "PARAM", "GRAD")
    )
    hooks = [
        optimizer_hooks.WeightDecay(number),
        optimizer_hooks.Lasso(number),
        optimizer_hooks.GradientNoise(number**2),  # the standard deviation is its root
        optimizer_hooks.GradientHardClipping(-number, number),
    ]
    for own in (*([hook] for hook in hooks), hooks[:3]):
        both = twin(launcher, [("SGD", 4099, np.float32)], own)
        both.entries[0].master.array[...] = param
        both.set_gradients([np.full(4099, grad, np.float32)])
        assert not receive(both.batch.check())
        both.batch.update()
        assert np.isfinite(both.masters()[0]).all()
