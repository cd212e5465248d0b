"""The batched update beside Chainer's own loop where users do odd things: found by looking for trouble."""

import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from mixprec.optimizer import UnscaledBackward
from mixprec.optimizer import step as batched_module
from mixprec.optimizer.batch.update_plan import plan
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_runs import stay_on_host
from tests.stand_ins.update_pair import assert_same_bits, link_of

BATCHED = pytest.mark.parametrize("batched", [True, False])
DTYPES = pytest.mark.parametrize("dtype", [np.float16, np.float32])


def _values(shape, seed=0, dtype=np.float32):
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(dtype)


def _write_gradients(model, seed):
    for number, (_, param) in enumerate(sorted(model.namedparams(include_uninit=False))):
        param.cleargrad()
        param.grad = _values(param.shape, 100 * seed + number, param.dtype)


def _step(optimizer, seed):
    _write_gradients(optimizer.target, seed)
    optimizer.update()


def _wrapped(model, inner=None, batched=True, scale=1.0):
    return mixprec.MixedPrecisionOptimizer(inner or optimizers.SGD(lr=0.1), scale, batched=batched).setup(model)


def _assert_same_run(new, run):
    """``run(optimizer)`` leaves the same bits, whether the update is batched or not."""
    batched, alone = (new(batched) for batched in (True, False))
    for optimizer in (batched, alone):
        run(optimizer)
    others = dict(alone.target.namedparams())
    for name, param in batched.target.namedparams():
        assert_same_bits(param.array, others[name].array, name)
        assert_same_bits(batched.master(param).array, alone.master(others[name]).array, f"master of {name}")
    assert batched.t == alone.t
    assert batched.skipped == alone.skipped


def _three_steps(optimizer):
    for seed in range(3):
        _step(optimizer, seed)


# --- one array or rule of several parameters


def _copied_link():
    model = chainer.Chain(a=L.Linear(3, 2, initialW=_values((2, 3))))
    with model.init_scope():
        model.b = model.a.copy()  # mode="share": arrays are shared, gradients are not
    return model


def _one_array():
    model = link_of({"a": _values((3,)), "b": _values((3,), 1), "c": _values((5,), 2)})
    model.b.array = model.a.array
    return model


def _transposed():
    model = link_of({"a": _values((3, 4)), "b": _values((4, 3), 1), "c": _values((5,), 2)})
    model.b.array = model.a.array.T
    return model


def _overlapping():
    model = link_of({"a": _values((6,)), "b": _values((4,), 1), "c": _values((5,), 2)})
    model.b.array = model.a.array[3:5]
    return model


@pytest.mark.parametrize("new", [_copied_link, _one_array, _transposed, _overlapping])
def test_parameters_with_one_array(new):
    """Chainer updates the array once for each of them, and so does the wrapper."""
    plain = optimizers.MomentumSGD(lr=0.1).setup(new())
    wrapped = [_wrapped(new(), optimizers.MomentumSGD(lr=0.1), batched) for batched in (True, False)]
    for optimizer in (plain, *wrapped):
        _three_steps(optimizer)
    for optimizer in wrapped:
        for (name, param), (_, expected) in zip(
            optimizer.target.namedparams(), plain.target.namedparams(), strict=True
        ):
            assert_same_bits(np.ascontiguousarray(param.array), np.ascontiguousarray(expected.array), name)
    assert str(wrapped[0].report()).count("it shares memory with another parameter") >= 2


@pytest.mark.parametrize(("inner", "dtype"), [(optimizers.MomentumSGD, np.float16), (optimizers.Adam, np.float32)])
def test_one_rule_of_two_parameters(inner, dtype):
    """Their state is one array, and their steps are counted together."""

    def new(batched):
        model = link_of({name: _values((3,), seed, dtype) for seed, name in enumerate("abc")})
        optimizer = _wrapped(model, inner(), batched)
        model.b.update_rule = model.a.update_rule
        return optimizer

    _assert_same_run(new, _three_steps)


# --- what is not finite, or cannot be divided by


@DTYPES
def test_a_rule_hook_that_spoils_gradients_after_clipping(dtype):
    """Promise 3: the step is skipped, also if the hooks of the optimizer ran in Chainer's code before the batch."""

    def run(optimizer):
        optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
        optimizer.target.a.update_rule.add_hook(optimizer_hooks.WeightDecay(1e38))
        optimizer.target.a.array[...] = 10
        _step(optimizer, 0)
        assert optimizer.last_step_skipped
        optimizer.target.a.update_rule.remove_hook("WeightDecay")
        _step(optimizer, 1)
        assert not optimizer.last_step_skipped

    _assert_same_run(
        lambda batched: _wrapped(link_of({"a": _values((3,), 0, dtype), "b": _values((9,))}), batched=batched), run
    )


def test_the_hook_does_not_skip_for_a_parameter_that_is_not_updated():
    """A mask of -inf in a disabled parameter beside rule hooks and clipping, whose norm it leaves alone."""

    def run(optimizer):
        mask, other = optimizer.target.mask, optimizer.target.a
        mask.array[0] = -np.inf
        mask.update_rule.enabled = False
        optimizer.add_hook(optimizer_hooks.WeightDecay(0.01))
        optimizer.add_hook(optimizer_hooks.GradientLARS())
        other.update_rule.add_hook(optimizer_hooks.Lasso(0.01))
        _step(optimizer, 0)
        assert not optimizer.last_step_skipped

    _assert_same_run(lambda batched: _wrapped(link_of({"a": _values((3,)), "mask": _values((3,))}), None, batched), run)


@BATCHED
def test_a_float64_gradient_beyond_float32(batched):
    """Users' backward passes may leave one; it is inf for the master."""
    model = link_of({"a": _values((3,)), "b": _values((5,))})
    optimizer = _wrapped(model, batched=batched)
    before = model.a.array.copy()
    model.cleargrads()
    model.a._grad, model.a._grad_valid = np.full(3, 1e300), True
    optimizer.update()
    assert optimizer.last_step_skipped
    assert_same_bits(model.a.array, before, "a")


@BATCHED
def test_a_scale_without_a_floor_that_has_come_down_to_zero(batched):
    model = link_of({"a": _values((3,)), "b": _values((9000,))})
    optimizer = _wrapped(model, None, batched, mixprec.DynamicLossScale(init=2.0**-140, floor=None, patience=100))
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(20):
            optimizer.update(lambda: F.sum(model.a * np.float32(np.inf)))
        optimizer.update(lambda: F.sum(model.a))
    assert optimizer.skipped == 21


@BATCHED
def test_mixed_gradients_that_somebody_takes_away_one_by_one(batched):
    """``param.grad = None`` instead of ``cleargrads()``: what the next pass does not reach has a gradient of 0."""
    model = link_of({"a": _values((3,)), "b": _values((3, 4))})
    optimizer = _wrapped(model, None, batched, 8.0)
    model.cleargrads()
    for scaled in (True, False):
        loss = F.sum(model.a) + F.sum(model.b)
        (optimizer.scale_loss(loss) if scaled else loss).backward()
    with pytest.raises(UnscaledBackward):
        optimizer.update()
    for param in model.params():
        param.grad = None
    optimizer.scale_loss(F.sum(model.a)).backward()
    optimizer.update()
    assert not optimizer.last_step_skipped
    assert optimizer.t == 1


# --- hyperparameters that are no numbers


@pytest.mark.parametrize("name", ["lr", "mask"])
def test_another_array_among_the_hyperparameters_of_a_rule_in_every_step(name):
    """A learning rate for each element, and something that the rule does not even know."""

    def run(optimizer):
        for seed in range(4):
            setattr(optimizer.target.a.update_rule.hyperparam, name, np.array([0.1, 0.2, 0.3], np.float32) * seed)
            _step(optimizer, seed)

    _assert_same_run(
        lambda batched: _wrapped(link_of({"a": _values((3,)), "b": _values((3,), 1)}), batched=batched), run
    )


# --- a step that cannot be made


def test_going_on_after_a_plan_could_not_be_made():
    """A switch that needs a state that is not there is Chainer's KeyError; switched back, the run goes on."""
    optimizer = _wrapped(link_of({"a": _values((3,)), "b": _values((9000,), 1)}), optimizers.Adam())
    expected = _wrapped(link_of({"a": _values((3,)), "b": _values((9000,), 1)}), optimizers.Adam())
    _step(optimizer, 0)
    optimizer.hyperparam.amsgrad = True
    for _ in range(2):
        with pytest.raises(KeyError, match="vhat"):
            _step(optimizer, 7)
    optimizer.hyperparam.amsgrad = False
    _step(optimizer, 1)
    for seed in range(2):
        _step(expected, seed)
    for param, other in zip(optimizer.target.params(), expected.target.params(), strict=True):
        assert_same_bits(param.array, other.array, param.name)
    assert optimizer.t == 2


# --- when a plan is made


class Rebinding(optimizers.sgd.SGDRule):
    """A momentum that is a new array in every step."""

    def init_state(self, param):
        self.state["v"] = np.zeros_like(param.array)

    def update_core(self, param):
        self.state["v"] = 0.9 * self.state["v"] - self.hyperparam.lr * param.grad
        param.array[...] += self.state["v"]


@pytest.fixture
def plans(monkeypatch):
    """A list that grows by one whenever a plan is made."""
    made = []
    monkeypatch.setattr(batched_module, "plan", lambda *args, **kwargs: made.append(1) or plan(*args, **kwargs))
    return made


def test_a_rule_of_the_user_that_puts_new_arrays_into_its_state(plans):
    """It is not in the batch: what it does with its state is no reason to plan anew."""
    optimizer = _wrapped(link_of({"a": _values((3,)), "b": _values((9000,)), "c": _values((4,))}))
    optimizer.target.a.update_rule = Rebinding(optimizer.hyperparam)
    for seed in range(5):
        _step(optimizer, seed)
    assert len(plans) == 1


@pytest.mark.parametrize("inner", [mixprec.LARS, optimizers.Adam])
def test_nothing_is_planned_twice_in_a_run(inner, plans):
    """Also if all parameters are updated one by one, and their states are made by the first step."""
    optimizer = _wrapped(link_of({"a": _values((3,)), "b": _values((9000,))}), inner())
    for seed in range(5):
        _step(optimizer, seed)
    assert len(plans) == 1


# --- hooks with something else than numbers


def test_hard_clipping_on_one_side():
    """NumPy takes ``None`` for no bound."""

    def run(optimizer):
        optimizer.add_hook(optimizer_hooks.GradientHardClipping(None, 0.1))
        _three_steps(optimizer)

    _assert_same_run(lambda batched: _wrapped(link_of({"a": _values((3,)), "b": _values((9000,))}), None, batched), run)


# --- zero_gradients


@pytest.mark.parametrize("place", [stay_on_host, device_stand_in.send])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: F.reshape(x, (3,))], ids=["one array", "a view"])
def test_zeros_in_a_gradient_that_two_parameters_share(place, view, launcher):
    """The backward pass of ``a + b`` gives both the same array; both are updated before it is zero."""
    model = place(link_of({"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}))
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=1.0), 8.0, zero_gradients=True).setup(model)
    weights = np.arange(3, dtype=np.float32)
    for step in range(1, 3):
        optimizer.scale_loss(F.sum((model.a + view(model.b)) * chainer.Variable(weights))).backward()
        assert np.shares_memory(model.a.grad, model.b.grad) or step > 1
        optimizer.update()
        for param in model.params():
            np.testing.assert_array_equal(np.asarray(param.array), -step * weights)
            assert not np.asarray(param.grad).any()


def test_the_message_of_a_diverged_run_does_not_count_zeros():
    model = link_of({"a": _values((3,))})
    scale = mixprec.DynamicLossScale(patience=2)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), scale, zero_gradients=True).setup(model)
    optimizer.update(lambda: F.sum(model.a * np.float32(np.inf)))
    with pytest.raises(mixprec.LossScaleExhausted, match=r"gradients have been set to zero already \(zero_gradients"):
        optimizer.update(lambda: F.sum(model.a * np.float32(np.inf)))


class Own(optimizers.sgd.SGDRule):
    """A rule that the batch does not know."""


def test_a_hyperparameter_that_is_refused_beside_a_rule_of_the_user():
    """The rules outside of the batch have not run either."""
    optimizer = _wrapped(link_of({"a": _values((3,)), "b": _values((9000,), 1)}), optimizers.RMSprop())
    optimizer.target.a.update_rule = Own(lr=0.1)
    _step(optimizer, 0)
    before = [param.array.copy() for param in optimizer.target.params()]
    optimizer.eps = 1e-60
    with pytest.raises(ValueError, match="too small for float32"):
        _step(optimizer, 1)
    for param, array in zip(optimizer.target.params(), before, strict=True):
        assert_same_bits(param.array, array, param.name)
    assert {optimizer.t, *(param.update_rule.t for param in optimizer.target.params())} == {1}


# --- copies, and what is kept


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_a_copy_leaves_the_same_parameters_out_of_weight_decay(copied):
    model = link_of({"b": _values((3,)), "w": _values((3, 4), 1, np.float16)})
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=0.1), 1.0, no_decay="ndim <= 1").setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(0.5))
    _step(optimizer, 0)
    other = copied(optimizer)
    for each in (optimizer, other):
        _step(each, 1)
    for param, expected in zip(other.target.params(), model.params(), strict=True):
        assert_same_bits(param.array, expected.array, param.name)


@pytest.mark.parametrize("inner", [optimizers.Adam, optimizers.MSVAG])
def test_two_optimizers_of_the_same_parameters_on_a_device(inner, launcher):
    """Both count in ``t`` of the same rules, whose bias correction knows the steps of either."""

    def run(place):
        model = place(link_of({"a": _values((3,)), "b": _values((5,), 1, np.float16)}))
        one, other = (_wrapped(model, inner()) for _ in range(2))
        for seed in range(6):
            _write_gradients(model, seed)
            if seed == 3:
                model.a.grad[0] = np.inf
            (other if seed % 2 else one).update()
        found = [np.asarray(one.master(param).array) for param in model.params()]
        return found, one.t, other.t, {param.update_rule.t for param in model.params()}

    (expected, *counts), (found, *found_counts) = run(stay_on_host), run(device_stand_in.send)
    assert counts == found_counts == [3, 2, {5}]
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)
