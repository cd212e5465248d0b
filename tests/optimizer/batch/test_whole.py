"""The batched update in whole runs: beside ``batched=False``, in and out of files and copies; and its report."""

import json

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers
from chainer.optimizers.sgd import SGDRule

import mixprec
from tests.cases import first, pairs
from tests.stand_ins.update_pair import add, assert_same_bits, link_of


class Net(chainer.Chain):
    """FP16 and FP32 parameters, small and large ones, statistics, and a layer without a size yet."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.wide = L.Linear(None, 1100)
            self.fc = L.Linear(1100, 4)

    def forward(self, x):
        return self.fc(F.relu(self.wide(F.average(F.relu(self.bn(self.conv(x))), axis=(2, 3)))))


# By name: what makes an optimizer, and the hooks of it.
OPTIMIZERS = {
    "MomentumSGD": (lambda: optimizers.MomentumSGD(lr=0.1), []),
    "Adam, decay": (lambda: optimizers.Adam(weight_decay_rate=0.01), [optimizer_hooks.Lasso(1e-4)]),
    "SMORMS3": (lambda: optimizers.SMORMS3(), []),
    "MSVAG, clipping": (lambda: optimizers.MSVAG(), [optimizer_hooks.GradientClipping(1.0)]),
    "LARS": (lambda: mixprec.LARS(lr=0.1, weight_decay=0.01), []),
}


def _optimizer(name, batched=True, compute="float16"):
    new, hooks = OPTIMIZERS[name]
    np.random.seed(0)
    model = L.Classifier(Net())
    mixprec.convert(model, compute=compute)
    scale = mixprec.DynamicLossScale(init=2.0**10, interval=3)
    optimizer = mixprec.MixedPrecisionOptimizer(new(), scale, batched=batched, no_decay="ndim <= 1").setup(model)
    for hook in hooks:
        optimizer.add_hook(hook)
    return optimizer


def _run(optimizer, steps):
    """Every fourth step overflows, the first one too; the learning rate falls."""
    for step in steps:
        random = np.random.RandomState(step)
        x, t = random.normal(size=(4, 3, 5, 5)).astype(np.float32), random.randint(0, 4, 4).astype(np.int32)
        if step % 4 == 0:
            x[1, 2, 3, 4] = np.inf
        for rate in ("lr", "alpha"):
            if rate in vars(optimizer.hyperparam):
                setattr(optimizer.hyperparam, rate, 0.1 / (1 + step))
        optimizer.update(optimizer.target, x, t)
        assert optimizer.last_step_skipped == (step % 4 == 0)
    return optimizer


def _saved(optimizer):
    saved = serializers.DictionarySerializer()
    optimizer.serialize(saved["optimizer"])
    optimizer.target.serialize(saved["model"])
    return {name: np.array(value) for name, value in saved.target.items()}


def _assert_same(found, expected):
    found, expected = _saved(found), _saved(expected)
    assert found.keys() == expected.keys()
    assert len(found) > 20
    for name, array in expected.items():
        assert_same_bits(found[name], array, name)


def _load(optimizer, saved):
    model = {name.removeprefix("model/"): value for name, value in saved.items() if name.startswith("model/")}
    own = {name.removeprefix("optimizer/"): value for name, value in saved.items() if name.startswith("optimizer/")}
    serializers.NpzDeserializer(model).load(optimizer.target)
    serializers.NpzDeserializer(own).load(optimizer)
    return optimizer


BOTH = [True, False]


@pytest.mark.parametrize(("name", "compute"), [*((name, "float16") for name in OPTIMIZERS), ("Adam, decay", "float32")])
def test_batched_or_not_is_the_same_run(name, compute):
    """Through backward passes, with a dynamic scale that falls and grows, skips, statistics, a schedule."""
    batched, alone = (_run(_optimizer(name, batched, compute), range(14)) for batched in BOTH)
    assert batched.report().batched == (4 if name == "LARS" else 7)
    assert alone.report().batched == 0
    assert (batched.skipped, batched.t) == (4, 10)
    assert batched.loss_scale == alone.loss_scale
    _assert_same(batched, alone)


FILES = pairs(["Adam, decay", "MSVAG, clipping", "LARS"], ["new", "live"], BOTH, BOTH)


@pytest.mark.parametrize(("name", "into", "writer", "reader"), first(3, FILES))
def test_a_file_of_either_goes_on_in_the_other(name, into, writer, reader):
    """In a fresh optimizer, or in one in mid-run, whose state, t and masters are replaced."""
    uninterrupted = _run(_optimizer(name), range(10))
    written = _run(_optimizer(name, writer), range(6))
    loaded = _optimizer(name, reader)
    if into == "live":
        _run(loaded, range(100, 103))
    _load(loaded, _saved(written))
    _assert_same(loaded, written)
    _assert_same(_run(loaded, range(6, 10)), uninterrupted)


# --- several optimizers, shared parameters


def _of(dtype=np.float16):
    random = np.random.RandomState(0)
    sizes = {"a": 5, "b": (3, 2), "big": 1200}
    return {name: random.normal(size=size).astype(np.float16).astype(dtype) for name, size in sizes.items()}


def _step_by_hand(optimizer, seed, bad=False):
    for param in optimizer.target.params():
        random = np.random.RandomState(seed + param.size)
        param.cleargrad()
        param.grad = random.normal(size=param.shape).astype(param.dtype)
    if bad:
        param.grad[...] = np.inf
    optimizer.update()
    assert optimizer.last_step_skipped == bad


def test_two_optimizers_of_the_same_parameters():
    """Each step of either sees what the other did; the second set up has given the rules."""

    def run(batched):
        model = link_of(_of())
        pair = [
            mixprec.MixedPrecisionOptimizer(new(), 1.0, batched=batched).setup(model)
            for new in (lambda: optimizers.MomentumSGD(lr=0.1), optimizers.Adam)
        ]
        for step in range(12):
            _step_by_hand(pair[step % 2 if step < 8 else 0], step, bad=step in (0, 5))
        return pair

    for found, expected in zip(run(True), run(False), strict=True):
        assert found.t == expected.t
        for param, other in zip(found.target.params(), expected.target.params(), strict=True):
            assert_same_bits(found.master(param).array, expected.master(other).array, param.name)
            assert_same_bits(param.array, other.array, param.name)
            assert param.update_rule.t == other.update_rule.t


@pytest.mark.parametrize("hooks", [[], [optimizer_hooks.WeightDecay(0.1)], [optimizer_hooks.GradientClipping(1.0)]])
def test_shared_parameters_beside_others(hooks):
    """Chainer updates them as often as they occur; the others stay in the batch unless a hook needs all of them."""

    def model(dtype):
        shared = link_of(_of(dtype))
        return chainer.ChainList(shared, chainer.ChainList(shared), link_of(_of(dtype)))

    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(lr=0.1), 1.0).setup(model(np.float16))
    plain = optimizers.MomentumSGD(lr=0.1).setup(model(np.float32))
    for each in (optimizer, plain):
        for hook in hooks:
            each.add_hook(hook)
    for step in range(6):
        _step_by_hand(optimizer, step, bad=step == 3)
        for param, master in zip(optimizer.target.params(), plain.target.params(), strict=True):
            master.grad = param.grad.astype(np.float32)
        if step != 3:
            plain.update()
    for (name, param), master in zip(optimizer.target.namedparams(), plain.target.params(), strict=True):
        assert_same_bits(optimizer.master(param).array, master.array, name)
        assert param.update_rule.t == master.update_rule.t
    clips = any(hook.name == "GradientClipping" for hook in hooks)
    assert optimizer.report().batched == (0 if clips else 3)


# --- the report


class Halving(SGDRule):
    def update_core(self, param):
        param.array -= np.asarray(0.5 * self.hyperparam.lr * param.grad)


class OddStep(optimizers.SGD):
    def update(self, lossfun=None, *args, **kwds):
        super().update(lossfun, *args, **kwds)


class OddHooks(optimizers.SGD):
    def reallocate_cleared_grads(self):
        pass


def _small(inner=None, batched=True):
    arrays = {name: np.zeros(3, np.float16) for name in "abc"}
    return mixprec.MixedPrecisionOptimizer(inner or optimizers.SGD(), 1.0, batched=batched).setup(link_of(arrays))


def _paths(optimizer):
    report = optimizer.report()
    return {row.name: row.path for row in report.parameters}, report.batched


def _ignore(*args):
    pass


def _unknown_hook(optimizer):
    optimizer.target.a.update_rule.add_hook(_ignore, name="mine")


def _uninitialized(optimizer):
    param = add(optimizer.target, "a", None)
    param.update_rule = optimizer.create_update_rule()


def _shared(optimizer):
    with optimizer.target.init_scope():
        optimizer.target.d = optimizer.target.a


def _rule_hook(*args, **kwargs):
    return lambda optimizer: optimizer.target.a.update_rule.add_hook(*args, **kwargs)


def _other_rule(make):
    return lambda optimizer: setattr(optimizer.target.a, "update_rule", make(optimizer))


OF_ONE = [
    (_ignore, "batched: SGDRule", 3),
    (_other_rule(lambda optimizer: None), "not updated: no update rule", 2),
    (lambda o: setattr(o.target.a.update_rule, "enabled", False), "not updated: its rule is disabled", 2),
    (_other_rule(lambda optimizer: Halving(optimizer.hyperparam)), "one by one: the rule Halving is unknown", 2),
    (
        _other_rule(lambda optimizer: mixprec.LARS().create_update_rule()),
        "one by one: LARSRule needs norms of whole parameters",
        2,
    ),
    (_unknown_hook, "one by one: the hook mine is unknown", 2),
    (_rule_hook(_ignore, "mine", "post"), "one by one: the hook mine runs after the update", 2),
    (_rule_hook(optimizer_hooks.GradientLARS()), "one by one: the hook GradientLARS needs whole parameters", 2),
    (
        lambda o: setattr(o.target.a, "array", np.zeros(6, np.float16)[::2]),
        "one by one: its array is not dense in memory",
        2,
    ),
    (
        lambda o: setattr(o.target.a.update_rule.hyperparam, "lr", np.array(0.5)),
        "one by one: its hyperparameter lr is an array",
        2,
    ),
    (_uninitialized, "waits until it is initialized", 2),
    (_shared, "one by one: it occurs 2 times, and Chainer updates it that many times", 2),
]


@pytest.mark.parametrize(("do", "path", "batched"), OF_ONE)
def test_what_the_report_says_of_one_parameter(do, path, batched):
    """The others are batched."""
    optimizer = _small()
    do(optimizer)
    paths, count = _paths(optimizer)
    assert paths["/a"] == path
    assert count == batched
    assert paths["/b"] == paths["/c"] == "batched: SGDRule"


def _optimizer_hook(hook, timing="auto", name=None):
    return lambda optimizer: optimizer.add_hook(hook, name=name, timing=timing)


OF_ALL = [
    (lambda: _small(batched=False), _ignore, "one by one: batched=False"),
    (lambda: _small(OddStep()), _ignore, "one by one: OddStep has its own update()"),
    (lambda: _small(OddHooks()), _ignore, "one by one: OddHooks has its own reallocate_cleared_grads()"),
    (_small, _optimizer_hook(_ignore, name="mine"), "one by one: the hook mine is unknown"),
    (
        _small,
        _optimizer_hook(optimizer_hooks.WeightDecay(0.1), "post"),
        "one by one: the hook WeightDecay runs after the update",
    ),
    (
        _small,
        _optimizer_hook(optimizer_hooks.GradientNoise(0.1, lambda xp, shape, *args: xp.zeros(shape))),
        "one by one: the hook GradientNoise is unknown",
    ),
    (_small, _optimizer_hook(optimizer_hooks.WeightDecay(0.1)), "batched: WeightDecay, SGDRule"),
    (_small, _optimizer_hook(optimizer_hooks.GradientClipping(0.1)), "batched: GradientClipping, SGDRule"),
]


@pytest.mark.parametrize(("new", "do", "path"), OF_ALL)
def test_what_the_report_says_of_all_parameters(new, do, path):
    optimizer = new()
    do(optimizer)
    paths, count = _paths(optimizer)
    assert set(paths.values()) == {path}
    assert count == (3 if path.startswith("batched") else 0)


def test_a_hook_over_all_parameters_names_the_one_that_is_not_in_the_batch():
    optimizer = _small()
    _unknown_hook(optimizer)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
    paths, count = _paths(optimizer)
    why = "GradientClipping runs over all parameters at once, and /a is not batched: the hook mine is unknown"
    assert set(paths.values()) == {f"one by one: {why}"}
    assert count == 0


def test_the_report_as_a_table_and_as_json():
    optimizer = _small()
    _unknown_hook(optimizer)
    optimizer.target.b.update_rule.enabled = False
    assert str(optimizer.report()).splitlines() == [
        "parameter  dtype    elements  update",
        "/a         float16         3  one by one: the hook mine is unknown",
        "/b         float16         3  not updated: its rule is disabled",
        "/c         float16         3  batched: SGDRule",
        "1 of 3 parameters in one batch",
    ]
    rows = json.loads(optimizer.report().to_json())["parameters"]
    assert rows[2] == {"name": "/c", "dtype": "float16", "size": 3, "path": "batched: SGDRule"}


def _assert_equal(found, expected):
    for param, other in zip(found.target.params(), expected.target.params(), strict=True):
        assert_same_bits(found.master(param).array, expected.master(other).array, param.name)
        for name, state in other.update_rule.state.items():
            assert_same_bits(param.update_rule.state[name], state, name)


# --- a hyperparameter that Chainer refuses


def test_an_eps_that_float32_cannot_hold():
    """An error, as in Chainer; nothing has moved, and the run goes on with another one."""
    optimizer, reference = (mixprec.MixedPrecisionOptimizer(optimizers.Adam(), 1.0).setup(link_of(_of())) for _ in "ab")
    _step_by_hand(optimizer, 1)
    optimizer.eps = 1e-50
    with pytest.raises(ValueError, match="eps of AdamRule is too small for float32"):
        _step_by_hand(optimizer, 2)
    optimizer.eps = reference.eps
    _step_by_hand(optimizer, 3)
    for seed in (1, 3):
        _step_by_hand(reference, seed)
    assert optimizer.t == 2
    _assert_equal(optimizer, reference)


def test_a_numpy_scalar_as_the_rate_of_a_hook():
    """It counts as the number it is; Chainer's own hook would compute in float64 with it, as compat mends for rules."""
    scalar, number = (
        mixprec.MixedPrecisionOptimizer(optimizers.SGD(lr=1.0), 1.0).setup(link_of(_of(np.float32))) for _ in range(2)
    )
    scalar.add_hook(optimizer_hooks.WeightDecay(np.float64(0.013)))
    number.add_hook(optimizer_hooks.WeightDecay(0.013))
    for optimizer in (scalar, number):
        _step_by_hand(optimizer, 0)
    assert_same_bits(scalar.target.big.array, number.target.big.array, "big")
