"""Learning rates of parts of a model, and parts that are frozen: on the host, on a device, in graphs."""

import copy
import fnmatch
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.base.name_patterns import UnknownName
from mixprec.native.native_library import library
from mixprec.optimizer.part_rates import Factors, checked, factors_of
from tests.cases import first
from tests.graph_capture.captured_runs import Run, assert_same
from tests.stand_ins import device_stand_in
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)
from tests.stand_ins.device_runs import Net, batch_of, new_optimizer, run_step, state_of, stay_on_host
from tests.stand_ins.update_pair import assert_same_bits, rate_of
from tests.stand_ins.update_pair import new_optimizer as new_rule

RATES = {"/hidden/*": 0.5, "/out/*": 4.0}
FROZEN = {"/hidden/*": 0, "/bn/gamma": 0.0, "/out/*": 2.0}


def setup(model, rates, inner=None, **settings):
    return mixprec.MixedPrecisionOptimizer(inner or optimizers.SGD(0.1), None, rates=rates, **settings).setup(model)


def factors(model, rates):
    answers = Factors(model, checked(rates))
    return {name: answers(param) for name, param in model.namedparams()}


# Patterns


PATTERNS = [
    (None, {}),
    ({}, {}),
    ({"/out/*": 10}, {"/out/W": 10, "/out/b": 10}),
    ({"*/b": 2, "/out/*": 3}, {"/hidden/b": 2, "/out/W": 3, "/out/b": 3}),
    ({"/out/*": 3, "*/b": 2}, {"/hidden/b": 2, "/out/W": 3, "/out/b": 2}),
    ({"*": 0, "/out/W": 1}, {"/hidden/W": 0, "/hidden/b": 0, "/bn/gamma": 0, "/bn/beta": 0, "/out/b": 0}),
    ({"/[ho]*/W": 0.5}, {"/hidden/W": 0.5, "/out/W": 0.5}),
]


@pytest.mark.parametrize(("rates", "expected"), PATTERNS)
def test_the_last_pattern_that_fits_a_name_counts(rates, expected):
    model = Net()
    assert factors(model, rates) == {name: expected.get(name, 1.0) for name, _ in model.namedparams()}


def test_names_are_told_apart_by_case():
    with pytest.raises(UnknownName):
        factors(Net(), {"/Out/*": 1})


NO_PATTERNS = [
    ("/ouut/*", "rates: '/ouut/*' matches no parameter; did you mean '/out/*'"),
    ("out/*", "rates: 'out/*' matches no parameter; did you mean '/out/*'"),
    ("/hidden/w", "'/hidden/W'"),
    ("/layer4/1/conv2/*", "matches no parameter; there are /bn/*, /hidden/*, /out/*, ..."),
]


@pytest.mark.parametrize(("pattern", "message"), NO_PATTERNS)
def test_a_pattern_that_fits_nothing_names_what_is_like_it(pattern, message):
    with pytest.raises(UnknownName) as found:
        setup(Net(), {"/bn/*": 2, pattern: 1})
    assert message in str(found.value)
    assert "\n" not in str(found.value)


NO_MAPPINGS = [
    ([("*", 1)], TypeError, "rates must be a dict from patterns to numbers, or None"),
    ({1: 1}, TypeError, "a pattern of rates must be a string"),
    ({"*": -1}, ValueError, r"rates\['\*'\] must be a finite number, 0 or more; found -1"),
    ({"*": "0.1"}, ValueError, "found '0.1'"),
    ({"*": float("nan")}, ValueError, "found nan"),
]


@pytest.mark.parametrize(("rates", "error", "message"), NO_MAPPINGS)
def test_what_is_no_mapping_to_factors_is_refused(rates, error, message):
    with pytest.raises(error, match=message):
        mixprec.MixedPrecisionOptimizer(optimizers.SGD(), rates=rates)


def test_all_parameters_frozen_is_an_error():
    with pytest.raises(ValueError, match="rates: all parameters are frozen, and there is nothing to train"):
        setup(Net(), {"/hidden/*": 0, "/*/*": 0})


def test_a_rule_without_a_learning_rate():
    with pytest.raises(ValueError, match="rates: AdaDeltaRule has no learning rate; only 0 can be a factor"):
        setup(Net(), {"/out/*": 2}, optimizers.AdaDelta())
    setup(Net(), {"/out/*": 0}, optimizers.AdaDelta())


def test_a_shared_parameter_has_the_last_pattern_that_fits_any_of_its_names():
    shared = L.Linear(2, 2)
    model = chainer.Sequential(shared, L.Linear(2, 2), shared)
    assert set(factors(model, {"/2/*": 3, "/1/*": 2}).values()) == {3, 2}


def test_parameters_that_come_late_or_get_another_rule():
    model = chainer.ChainList(L.Linear(None, 3), L.Linear(3, 2))
    optimizer = setup(model, {"/0/*": 0, "/1/*": 2.0, "*/b": 3.0})
    model[1].W.update_rule = optimizer.create_update_rule()
    model.append(L.Linear(2, 2))
    for param in model[2].params():
        param.update_rule = optimizer.create_update_rule()
    own = optimizers.MomentumSGD(7.0).create_update_rule()
    own.hyperparam.lr = 5.0
    model[1].b.update_rule = own
    for _ in range(2):
        optimizer.update(lambda: F.sum(model[2](model[1](model[0](np.ones((1, 4), np.float32))))))
    rates = {name: param.update_rule.hyperparam.lr for name, param in model.namedparams() if name != "/0/W"}
    assert rates == {"/0/b": 0.1 * 3, "/1/W": 0.1 * 2, "/1/b": 5.0, "/2/W": 0.1, "/2/b": 0.1 * 3}
    assert not model[0].W.update_rule.enabled
    assert model[0].W.grad is None


# Steps


RULES = [("MomentumSGD", True), ("AdamW", True), ("MSVAG", False), ("LARS", True), ("ScheduleFreeSGD", False)]


@pytest.mark.parametrize(("name", "batched"), RULES)
def test_factors_are_on_the_learning_rate_that_a_schedule_moves(name, batched):
    """Bit for bit the same rules, each given its learning rate by hand before each step."""
    sides = []
    for rates in (RATES, None):
        np.random.seed(0)
        model = Net()
        mixprec.convert(model, layout="nchw", fuse=False)
        inner = new_rule(name)
        optimizer = mixprec.MixedPrecisionOptimizer(inner, 2.0**8, batched=batched, rates=rates).setup(model)
        rate = "eta" if hasattr(inner, "eta") else rate_of(inner)
        for step in range(6):
            setattr(optimizer, rate, getattr(optimizer, rate) * 0.75)
            for path, param in model.namedparams() if rates is None else ():
                factor = next((RATES[p] for p in RATES if path.startswith(p[:-1])), 1.0)
                setattr(param.update_rule.hyperparam, rate, getattr(optimizer, rate) * factor)
            run_step(optimizer, step, np.array)
        sides.append(state_of(optimizer))
    for key, expected in sides[1].items():
        assert_same_bits(sides[0][key], expected, key)


# Freezing


@pytest.mark.skipif(library() is None, reason="needs the native library")
@pytest.mark.parametrize("batched", [True, False])
def test_a_frozen_parameter_has_no_update_no_gradient_and_no_state(batched):
    """Neither decay nor what is left of momentum moves it; running statistics go on."""
    optimizer = new_optimizer("MomentumSGD", stay_on_host, [optimizer_hooks.WeightDecay(0.1)], batched, FROZEN)
    model = optimizer.target
    before = {name: param.array.copy() for name, param in model.namedparams()}
    masters = {name: optimizer.master(param).array.copy() for name, param in model.namedparams()}
    mean = model.bn.avg_mean.copy()
    for step in range(6):
        run_step(optimizer, step, np.array)
    for name, param in model.namedparams():
        frozen = name in ("/hidden/W", "/hidden/b", "/bn/gamma")
        same = param.array.tobytes() == before[name].tobytes()
        assert same == frozen, name
        assert (optimizer.master(param).array.tobytes() == masters[name].tobytes()) == frozen
        assert (param.grad is None) == (param.update_rule.state is None) == frozen
        assert param.update_rule.t == (0 if frozen else 4)
    assert (model.bn.avg_mean != mean).any()
    paths = {row.name: row.path for row in optimizer.report().parameters}
    assert paths["/hidden/W"] == ("not updated: frozen" if batched else "one by one: batched=False")


def test_in_a_converted_model_a_frozen_beginning_keeps_nothing():
    """The graph begins where the first trained parameter is."""
    model = chainer.Sequential(L.Linear(6, 5), F.relu, L.Linear(5, 2))
    mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(), rates={"/0/*": 0}).setup(model)
    x = np.zeros((2, 6), np.float32)
    mixprec.convert(model, x)
    frozen = model[0](x)
    assert not frozen.requires_grad
    cast = frozen.creator_node  # which keeps nothing
    assert cast.inputs[0].creator_node is None


def test_a_frozen_beginning_has_no_backward_pass():
    optimizer = new_optimizer("SGD", stay_on_host, rates={"/hidden/*": 0})
    model = optimizer.target
    x = batch_of(1, np.array)
    assert not model.hidden(x).requires_grad
    found = []

    class Backward(chainer.FunctionHook):
        name = "Backward"

        def backward_preprocess(self, function, in_data, out_grad):
            found.append(function.label)

    with Backward():
        run_step(optimizer, 1, np.array)
    assert found.count("LinearFunction") == 1  # that of /out
    assert any("BatchNorm" in label for label in found)


def test_the_norm_of_clipping_is_that_of_what_is_trained():
    model = chainer.ChainList(L.Linear(1, 1, initialW=3, nobias=True), L.Linear(1, 1, initialW=2, nobias=True))
    optimizer = setup(model, {"/0/*": 0}, optimizers.SGD(1.0))
    optimizer.add_hook(optimizer_hooks.GradientClipping(1.5))
    optimizer.update(lambda: F.sum(model[1](model[0](np.ones((1, 1), np.float32)))))
    np.testing.assert_allclose(model[1].W.array, 2 - 1.5, rtol=1e-6)


def test_another_optimizer_thaws_what_was_frozen_but_not_what_the_user_froze():
    model = Net()
    model.out.b._requires_grad = model.out.b.node._requires_grad = False
    setup(model, {"/hidden/*": 0})
    assert [param.requires_grad for param in (model.hidden.W, model.out.W, model.out.b)] == [False, True, False]
    optimizer = setup(model, {"/bn/*": 0})
    assert [param.requires_grad for param in (model.hidden.W, model.bn.beta, model.out.b)] == [True, False, False]
    optimizer.update(lambda: F.sum(model(batch_of(1, np.array)) ** 2))
    assert model.hidden.W.grad is not None


@pytest.mark.parametrize("how", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_copies_go_on_with_their_rates(how):
    optimizer = new_optimizer("MomentumSGD", stay_on_host, rates=FROZEN)
    run_step(optimizer, 1, np.array)
    other = how(optimizer)
    for each in (optimizer, other):
        each.lr = 0.5
        run_step(each, 2, np.array)
        assert each.target.hidden.W.grad is None
    for key, expected in state_of(optimizer).items():
        assert_same_bits(state_of(other)[key], expected, key)


@pytest.mark.parametrize(("then", "now"), [(FROZEN, None), (None, FROZEN), (FROZEN, {"/hidden/*": 3.0, "/out/*": 0})])
def test_a_snapshot_goes_on_with_other_factors(tmp_path, then, now):
    """What was frozen begins with the state of a first step, and what is frozen from now on keeps its weights."""
    first = new_optimizer("Adam", stay_on_host, rates=then)
    for step in range(3):
        run_step(first, step, np.array)
    had = [param.update_rule.state is None for param in first.target.params()]
    serializers.save_npz(tmp_path / "o.npz", first)
    assert [param.update_rule.state is None for param in first.target.params()] == had  # no memory for it meanwhile
    serializers.save_npz(tmp_path / "m.npz", first.target)
    second = new_optimizer("Adam", stay_on_host, rates=now)
    serializers.load_npz(tmp_path / "m.npz", second.target)
    serializers.load_npz(tmp_path / "o.npz", second)
    frozen = {name for name, (_, factor) in factors_of(second).items() if factor == 0}
    before = {name: param.array.tobytes() for name, param in second.target.namedparams()}
    run_step(second, 4, np.array)
    for name, param in second.target.namedparams():
        assert (param.array.tobytes() == before[name]) == (name in frozen)
        was_frozen = factors_of(first)[name][1] == 0
        if name not in frozen:
            assert param.update_rule.t == (1 if was_frozen else 1 + 2)


def test_a_switch_of_the_optimizer_is_seen_though_all_rules_have_factors():
    optimizer = new_optimizer("SGDW", stay_on_host, rates={"*": 0.5})
    beside = new_optimizer("SGDW", stay_on_host)
    for each, rate in ((optimizer, 0.5), (beside, 0.25)):
        each.lr = rate
        run_step(each, 1, np.array)
        each.nesterov = True
        run_step(each, 2, np.array)
    for key, expected in state_of(beside).items():
        assert_same_bits(state_of(optimizer)[key], expected, key)


# Elsewhere


@pytest.mark.parametrize(("name", "rates"), [("MomentumSGD", FROZEN), ("AdamW", RATES), ("ScheduleFreeSGD", FROZEN)])
def test_a_device_does_the_same_in_two_launches(launcher, name, rates):
    hooks = [optimizer_hooks.WeightDecay(0.01)]
    sides = []
    for place, send in ((device_stand_in.array, device_stand_in.send), (np.array, stay_on_host)):
        optimizer = new_optimizer(name, send, hooks, rates=rates)
        reads = device_stand_in.DeviceArray.reads
        for step in range(6):
            setattr(optimizer, "eta" if name == "AdamW" else "lr", 0.1 / (1 + step))
            launcher.launches.clear()
            run_step(optimizer, step, place)
            assert len(launcher.launches) == (2 if send is device_stand_in.send else 0)
        assert device_stand_in.DeviceArray.reads == reads
        sides.append(state_of(optimizer))
    for key, expected in sides[1].items():
        assert_same_bits(sides[0][key], expected, key)


@pytest.mark.parametrize("rule", first(1, ["MomentumSGD", "ScheduleFreeSGD"]))
def test_captured_steps_are_eager_steps(rule, host, device):  # noqa: F811
    """With a schedule: a graph has the factors, and the base moves; a step that overflows is among them."""
    rates = {"/predictor/conv1/*": 0, "/predictor/bn1/*": 0, "/predictor/fc/*": 10.0, "*/b": 0.5}
    expected = Run(None, rule, rates=rates).run(range(9)).results()
    captured = Run({"required": True}, rule, rates=rates).run(range(9))
    assert captured.step.replays == 4
    assert captured.model.predictor.conv1.W.grad is None
    assert_same(captured, expected)


@pytest.mark.parametrize("frozen", ["/0/W", "*/b"])
def test_a_preconditioner_leaves_frozen_parameters_alone(frozen):
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(5, 4), F.relu, L.Linear(4, 3))
    kfac = mixprec.KFAC(0.1, kl_clip=0.01)
    optimizer = setup(model, {frozen: 0}, preconditioner=kfac)
    mixprec.convert(model, compute="float32")
    before = {name: param.array.copy() for name, param in model.namedparams()}
    x, t = np.random.normal(size=(6, 5)).astype("f"), np.arange(6, dtype="i") % 3
    for _ in range(2):
        optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
    for name, param in model.namedparams():
        is_frozen = fnmatch.fnmatch(name, frozen)
        assert (param.array == before[name]).all() == is_frozen, name
