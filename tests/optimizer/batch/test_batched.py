"""The batched update on NumPy: bit for bit what plain Chainer does to FP32 parameters, whatever happens on the way."""

import chainer
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers
from chainer.optimizer import Hyperparameter
from chainer.optimizers.sgd import SGDRule
from hypothesis import given, settings
from hypothesis import strategies as st

from mixprec.base.dtypes import BFLOAT16 as BF16
from mixprec.optimizer.batch import update_plan
from tests.cases import first, tries
from tests.stand_ins.update_pair import RULES, Pair, new_optimizer, rate_of

F16, F32, F64 = np.float16, np.float32, np.float64

# The native library goes over blocks of 1,024 elements.
MANY = {
    **{f"half{size}": ((size,), F16) for size in (1, 7, 31)},
    "half_matrix": ((33, 100), F16),
    "half_scalar": ((), F16),
    "half_empty": ((0, 3), F16),
    **{f"brain{size}": ((size,), BF16) for size in (1, 31)},
    "brain_matrix": ((3, 1100), BF16),
    "single7": ((7,), F32),
    "single4096": ((2, 2048), F32),
    "single_scalar": ((), F32),
    "own_rate": ((9,), F16),
    "own_rate_empty": ((0,), F16),
    "late_rate": ((1100,), F16),
    "disabled": ((5, 5), F16),
    "disabled_brain": ((5, 3), BF16),
    "no_rule": ((5,), F16),
    "never": ((6,), F16),
    "seldom": ((1025,), F16),
}
FEW = {"a": ((3, 4), F16), "b": ((4,), F16), "c": ((5,), F32), "d": ((2, 3), F32), "large": ((1199,), F16)}
FEW_BRAIN = {name: (shape, BF16 if dtype == F16 else dtype) for name, (shape, dtype) in FEW.items()}


def _with_odd_ones(side):
    rate = rate_of(side.optimizer)
    for name in ("own_rate", "own_rate_empty"):
        setattr(side.rule(name).hyperparam, rate, 0.051)
    for name in ("disabled", "disabled_brain"):
        side.rule(name).enabled = False
    side.param("no_rule").update_rule = None


def _schedule(side, step):
    rate = rate_of(side.optimizer)
    if rate != "rho":
        setattr(side.optimizer, rate, 0.01 * (1.01 + np.cos(step)))
    if step == 20:
        setattr(side.rule("late_rate").hyperparam, rate, 0.51)
    if step == 30:
        setattr(side.rule("own_rate").hyperparam, rate, 0.17)


def _scale(random, names, step):
    """One scale for all, as usual; in every fifth step some have one of their own, and some gradients none."""
    if step % 5 != 3:
        return 2.0 ** random.randint(-3, 11)
    return {name: 2.0 ** random.randint(-3, 11) for name in names if random.randint(3)}


# --- every rule


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_chainers(name):
    """35 steps: all kinds of parameters, schedules, scales that differ, missing gradients, skips wherever they hurt."""
    pair = Pair(lambda: new_optimizer(name), MANY)
    pair.do(_with_odd_ones)
    if name not in ("LARS", "LAMB"):
        assert pair.wrapped.optimizer.report().batched == len(MANY) - 3
    _steps_of_many(pair)
    assert pair.applied == 27


def _steps_of_many(pair):
    spoiled = {0: "half_matrix", 1: "half7", 24: "single4096", 25: "half_scalar", 26: "disabled", 34: "single7"}
    spoiled |= {8: "brain_matrix", 9: "brain31"}
    for step in range(35):
        pair.do(_schedule, step)
        missing = {"never", *([] if step % 7 == 5 else ["seldom"]), f"half{(1, 7, 31)[step % 3]}", "brain1"}
        spoil = (spoiled[step], (np.inf, -np.inf, np.nan)[step % 3]) if step in spoiled else None
        pair.step(_scale(pair.random, MANY, step), missing=missing - {spoiled.get(step)}, spoil=spoil)
        if step % 10 == 9 or step in (0, 1, 2, 24, 26, 34):
            pair.assert_same()


@pytest.mark.parametrize("name", ["Adam", "MSVAG", "LARS", "ScheduleFreeSGD"])
def test_without_the_library_chainers_own_loop_has_the_same_bits(name, monkeypatch, caplog):
    """Of which the library itself has said that it is missing."""
    monkeypatch.setattr(update_plan, "library", lambda: None)
    pair = Pair(lambda: new_optimizer(name), MANY)
    pair.do(_with_odd_ones)
    _steps_of_many(pair)
    assert {row.path for row in pair.wrapped.optimizer.report().parameters} == {
        "one by one: there is no native library"
    }
    assert caplog.records == []


def test_what_the_library_does_not_take_runs_beside_the_batch(caplog):
    """Float64, arrays that are read-only or not aligned, a state in another dtype, many hooks: said once, by name."""
    odd = dict.fromkeys(("double", "frozen"), ((2, 3), F64)) | dict.fromkeys(("state", "hooked"), ((6,), F32))
    pair = Pair(lambda: new_optimizer("Adam"), {**odd, "unaligned": ((6,), F32), **FEW})
    for side in pair.sides:
        side.rule("frozen").enabled = False
        side.param("unaligned").array = np.zeros(25, np.uint8)[1:].view(F32)
        side.rule("state")._init_states(side.param("state"))
        side.rule("state").state["m"] = np.zeros(6, F64)
        for number in range(9):
            side.rule("hooked").add_hook(DECAY, f"{number}")
    for step in range(4):
        pair.step(4.0, spoil=("frozen", np.inf) if step == 1 else None)
        pair.assert_same()
    paths = {row.name[1:]: row.path for row in pair.wrapped.optimizer.report().parameters}
    assert {name: paths[name] for name in odd} | {"unaligned": paths["unaligned"]} == {
        "double": "one by one: it is in float64",
        "frozen": "not updated: its rule is disabled",
        "state": "one by one: its state m is in float64",
        "hooked": "one by one: it has more than 8 hooks",
        "unaligned": "one by one: its array is read-only or not aligned in memory",
    }
    assert pair.wrapped.optimizer.report().batched == len(FEW)
    (record,) = caplog.records
    assert "/double one by one: it is in float64" in record.message


def _zoo():
    params, rules = {}, {}
    for place, name in enumerate(name for name in RULES if name not in ("LARS", "LAMB")):
        for number, (shape, dtype) in enumerate([((7,), F16), ((3, 2), F32), ((1,), BF16)]):
            params[f"p{place}_{number}"] = shape, dtype
            rules[f"p{place}_{number}"] = name
    params["large"], rules["large"] = ((1195,), F16), "Adam"
    return params, rules


DECAY, LASSO = optimizer_hooks.WeightDecay(0.013), optimizer_hooks.Lasso(0.0017)
HARD, CLIP = optimizer_hooks.GradientHardClipping(-0.7, 0.8), optimizer_hooks.GradientClipping(3.1)
LARS, NOISE = optimizer_hooks.GradientLARS(weight_decay=0.013), optimizer_hooks.GradientNoise(0.013)
HOOKS = {
    "decay, lasso, bounds": ([DECAY, LASSO, HARD], []),
    "norm of all, then decay; lasso": ([CLIP, DECAY], [LASSO]),
    "all over the place": ([HARD, LASSO], [DECAY, LASSO, HARD]),
    "norms; noise; bounds": ([LARS, CLIP, NOISE], [HARD]),
    "elementwise; norms": ([DECAY], [HARD, LARS]),
    "bounds, lasso, decay": ([HARD, LASSO, DECAY], []),
    "rules: WeightDecay": ([], [DECAY]),
    "rules: GradientNoise": ([], [NOISE]),
    "decay, then the norm of all": ([DECAY, CLIP], []),
    "norms of all; norms of each": ([CLIP], [LARS]),
}


@pytest.mark.parametrize("hooks", first(4, HOOKS))
def test_every_rule_with_hooks_is_chainers(hooks):
    """26 steps of all rules in one model. Half of the rules have the hooks for rules."""
    params, rules = _zoo()
    pair = Pair(optimizers.SGD, params, rules=rules)
    for side in pair.sides:
        for number, hook in enumerate(HOOKS[hooks][0]):
            side.optimizer.add_hook(hook, name=f"{number}")
        for name in sorted(rules)[::2]:
            for number, hook in enumerate(HOOKS[hooks][1]):
                side.rule(name).add_hook(hook, name=f"{number}")
    spoiled = {0: "p3_1", 13: "large", 25: "p0_0"}
    for step in range(26):
        spoil = (spoiled[step], np.inf) if step in spoiled else None
        missing = () if spoil else {f"p{(step + k) % (len(RULES) - 2)}_{k}" for k in range(3)}
        pair.step(_scale(pair.random, params, step), missing=missing, spoil=spoil)
        if step in (0, 1, 6, 13, 19, 25):
            pair.assert_same()


# --- what users do in the middle of a run


def _own_rate(side):
    setattr(side.rule("a").hyperparam, rate_of(side.optimizer), 0.02)
    yield
    setattr(side.rule("a").hyperparam, rate_of(side.optimizer), 0.03)
    yield
    delattr(side.rule("a").hyperparam, rate_of(side.optimizer))


def _other_hyperparam(side):
    before = side.rule("large").hyperparam
    side.rule("large").hyperparam = Hyperparameter(before.parent)
    setattr(side.rule("large").hyperparam, rate_of(side.optimizer), 0.02)
    yield
    side.rule("large").hyperparam = before


def _own_parent(side):
    parent = Hyperparameter(side.optimizer.hyperparam)
    setattr(parent, rate_of(side.optimizer), 0.02)
    for name in ("a", "large"):
        side.rule(name).hyperparam._parent = parent
    yield
    setattr(parent, rate_of(side.optimizer), 0.03)
    yield
    side.rule("a").hyperparam._parent = side.optimizer.hyperparam


def _new_rule(side):
    for name in ("b", "large"):
        side.param(name).update_rule = side.optimizer.create_update_rule()


def _rule_of_another_class(side):
    for name in ("b", "c", "large"):
        side.param(name).update_rule = optimizers.NesterovAG(lr=0.02).create_update_rule()


def _no_rule(side):
    kept = side.rule("a"), side.rule("large")
    side.param("a").update_rule = side.param("large").update_rule = None
    yield
    side.param("a").update_rule, side.param("large").update_rule = kept


def _rules_swapped(side):
    one, other = side.param("a"), side.param("extra")
    one.update_rule, other.update_rule = other.update_rule, one.update_rule


def _other_t(side):
    side.rule("b").t = 40
    side.optimizer.t = 7
    yield
    side.rule("large").t += 1


def _disable(side):
    side.rule("a").enabled = side.rule("large").enabled = False
    yield
    side.rule("a").enabled = True
    yield
    side.link.disable_update()
    yield
    side.link.enable_update()


def _optimizer_hook(side):
    side.optimizer.add_hook(optimizer_hooks.WeightDecay(0.01))
    yield
    side.optimizer.add_hook(optimizer_hooks.GradientHardClipping(-0.3, 0.3))
    yield
    side.optimizer.remove_hook("WeightDecay")
    side.optimizer.add_hook(optimizer_hooks.WeightDecay(0.01))
    yield
    side.optimizer.add_hook(optimizer_hooks.GradientClipping(0.5))
    yield
    for name in ("WeightDecay", "GradientHardClipping", "GradientClipping"):
        side.optimizer.remove_hook(name)


def _other_rate_of_a_hook(side):
    hook, bounds = optimizer_hooks.WeightDecay(0.01), optimizer_hooks.GradientHardClipping(-0.3, 0.3)
    side.optimizer.add_hook(hook)
    side.rule("large").add_hook(bounds)
    yield
    hook.rate = 0.3
    bounds.upper_bound = 0.1


def _rule_hook(side):
    side.rule("b").add_hook(optimizer_hooks.Lasso(0.01))
    side.rule("large").add_hook(optimizer_hooks.Lasso(0.01))
    yield
    side.rule("b").add_hook(optimizer_hooks.GradientLARS())
    yield
    side.rule("b").remove_hook("Lasso")
    side.rule("large").remove_hook("Lasso")


def _unknown_hooks(side):
    side.rule("b").add_hook(lambda rule, param: np.negative(param.grad, out=param.grad), name="negate")
    yield
    side.optimizer.add_hook(lambda optimizer: [np.negative(p.grad, out=p.grad) for p in optimizer.target.params()], "n")
    yield
    side.rule("b").remove_hook("negate")
    yield
    side.optimizer.remove_hook("n")


def _post_hooks(side):
    side.rule("b").add_hook(lambda rule, param: np.multiply(param.array, 0.5, out=param.array), "h", timing="post")
    side.rule("large").add_hook(lambda rule, param: np.multiply(param.array, 0.5, out=param.array), "h", "post")
    yield
    side.rule("b").remove_hook("h")
    side.optimizer.add_hook(optimizer_hooks.WeightDecay(0.01), timing="post")
    yield
    side.optimizer.remove_hook("WeightDecay")


class Halving(SGDRule):
    """A rule of the user's own."""

    def update_core(self, param):
        param.array -= np.asarray(0.5 * self.hyperparam.lr * param.grad)


def _users_rule(side):
    before = side.rule("a")
    side.param("a").update_rule = Halving(optimizers.SGD(lr=0.03).hyperparam)
    yield
    side.param("a").update_rule = before


def _parameter_added(side):
    side.add("x", (3, 3))
    side.add("y", (1200,))
    side.add("without", (3,), rule=False)
    yield
    side.add("z", (), F32)
    side.param("without").update_rule = side.optimizer.create_update_rule()


def _parameter_replaced(side):
    side.add("b", (4,))
    side.add("large", (1300,))
    yield
    side.add("c", (2, 2), F32)


def _parameter_deleted(side):
    del side.link.b
    yield
    del side.link.large
    yield
    side.add("b", (4,))
    side.add("large", (900,))


def _parameter_renamed(side):
    """The second of them is not in the batch."""
    side.rule("large").add_hook(lambda rule, param: None, name="unknown")
    yield
    for name in ("b", "large"):
        param = side.param(name)
        delattr(side.link, name)
        with side.link.init_scope():
            setattr(side.link, f"{name}_renamed", param)


def _lazy(side):
    side.add("late", None)
    side.add("later", None)
    yield
    side.param("late").initialize((2, 3))
    yield
    side.param("later").initialize((1195,))


def _other_state(side):
    for name in ("b", "large"):
        state = side.rule(name).state or {}
        for key, value in state.items():
            state[key] = np.abs(value) + np.asarray(1, value.dtype)
    yield
    for name in ("b", "large"):
        for value in (side.rule(name).state or {}).values():
            value[...] = 0.5
    yield
    side.rule("large")._state = None


def _eps_inside(side):
    side.optimizer.hyperparam.eps_inside_sqrt = True
    yield
    side.rule("large").hyperparam.eps_inside_sqrt = False
    side.rule("b").hyperparam.eps_inside_sqrt = True
    yield
    side.optimizer.hyperparam.eps_inside_sqrt = False


def _other_variant_of_adam(side):
    side.optimizer.hyperparam.amsgrad = False
    yield
    side.optimizer.hyperparam.adabound = False
    yield
    side.rule("large").hyperparam.adabound = side.rule("a").hyperparam.amsgrad = True
    side.rule("large").initial_alpha = 0.026
    yield
    side.optimizer.hyperparam.adabound = True
    side.rule("b").initial_alpha = 0.05


def _adaption(side):
    side.optimizer.hyperparam.adapt = False
    yield
    side.optimizer.hyperparam.adapt = True
    yield
    side.rule("a").hyperparam.adapt = side.rule("large").hyperparam.adapt = False


_ANY = ["MomentumSGD", "SMORMS3", "MSVAG", "Adam"]
EVENTS = (
    {_own_rate: _ANY, _other_hyperparam: _ANY, _own_parent: _ANY, _new_rule: _ANY, _rule_of_another_class: _ANY}
    | {_no_rule: _ANY, _rules_swapped: _ANY, _other_t: _ANY, _disable: _ANY, _optimizer_hook: _ANY}
    | {_other_rate_of_a_hook: _ANY, _rule_hook: _ANY, _unknown_hooks: _ANY, _post_hooks: _ANY, _users_rule: _ANY}
    | {_parameter_added: _ANY, _parameter_replaced: _ANY, _parameter_deleted: _ANY, _parameter_renamed: _ANY}
    | {_lazy: _ANY, _other_state: _ANY, _eps_inside: ["RMSprop"], _other_variant_of_adam: ["AMSBound"]}
    | {_adaption: ["LARS", "LAMB"]}
)


def _runs():
    """Each event with two optimizers in turn, one of them with BF16 and with looks at the model."""
    for number, (event, names) in enumerate(EVENTS.items()):
        yield event, names[number % len(names)], FEW, False
        yield event, names[(number + 1) % len(names)], FEW_BRAIN, True


@pytest.mark.parametrize(("event", "name", "few", "looks"), list(_runs()))
def test_the_middle_of_a_run(event, name, few, looks):
    """Something every third step, with skips before and after it; also if others have looked at the model meanwhile."""
    pair = Pair(lambda: new_optimizer(name), {**few, "extra": few["a"]})
    runs = [iter(event(side) or ()) for side in pair.sides]
    for step in range(20):
        if step % 3 == 2:
            done = [next(run, run) is run for run in runs]
            assert done[0] == done[1]
        if looks:
            list(pair.wrapped.optimizer.unscaled_gradients())
            pair.wrapped.optimizer.serialize(chainer.serializers.DictionarySerializer())
            pair.wrapped.optimizer.report()
        pair.step(2.0 ** (step % 4), spoil=("d", np.inf) if step % 6 in (1, 2) else None)
        if step % 6 in (2, 4):
            pair.assert_same()
    pair.assert_same()


# --- properties


_SHAPES = st.sampled_from([(), (1,), (0, 2), (7,), (3, 5), (1023,), (1025,), (8192,)])
_PARAMS = st.lists(
    st.tuples(_SHAPES, st.sampled_from([F16, BF16, F32, F64]), st.sampled_from(list(RULES)), st.booleans()),
    min_size=1,
    max_size=8,
)


@settings(max_examples=tries(25))
@given(
    params=_PARAMS,
    hooks=st.lists(st.sampled_from([DECAY, LASSO, HARD, CLIP, LARS]), max_size=2),
    rule_hooks=st.lists(st.sampled_from([DECAY, LASSO, HARD, LARS]), max_size=2),
    exponents=st.lists(st.integers(-14, 12), min_size=3, max_size=6),
    skips=st.sets(st.integers(0, 5)),
    batched=st.booleans(),
)
def test_any_model_any_hooks_any_scales(params, hooks, rule_hooks, exponents, skips, batched):
    """A handful of parameters of any size, dtype and rule, enabled or not; each with the same hooks; a few steps."""
    names = {f"p{place}": param for place, param in enumerate(params)}
    rules = {name: rule for name, (_, _, rule, _) in names.items()}
    pair = Pair(optimizers.SGD, {name: param[:2] for name, param in names.items()}, rules=rules, batched=batched)
    for side in pair.sides:
        for number, hook in enumerate(hooks):
            side.optimizer.add_hook(hook, f"{number}")
        for name, (*_, enabled) in names.items():
            side.rule(name).enabled = enabled
            for number, hook in enumerate(rule_hooks):
                side.rule(name).add_hook(hook, f"{number}")
    spoilable = [name for name, (shape, *_) in names.items() if np.prod(shape)]
    for step, exponent in enumerate(exponents):
        spoil = (spoilable[step % len(spoilable)], np.nan) if step in skips and spoilable else None
        with np.errstate(divide="ignore", invalid="ignore"):  # Chainer clips a norm of 0, and MSVAG divides 0 by 0
            pair.step(2.0**exponent, spoil=spoil)
    pair.assert_same()
