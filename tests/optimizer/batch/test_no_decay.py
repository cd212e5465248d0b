"""Parameters without weight decay: by kind, also if they come late; in hooks and in update rules."""

import copy
import json
import pickle

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec
from mixprec.optimizer.no_decay import DecayOfSome, NoDecay


class Net(chainer.Chain):
    """A stem without a shape yet; a shared normalization; a chain with a parameter of its own and a child."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = L.Convolution2D(None, 4, 3)
            self.norm = L.BatchNormalization(4)
            self.block = Block()
        self.block.add_link("norm", self.norm)


class Block(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.temperature = chainer.Parameter(np.array(1, np.float32))
            self.fc = L.Linear(4, 2)


class MyNorm(L.BatchNormalization):
    pass


def excluded(kinds, model):
    without = NoDecay(kinds).of(model)
    return {name for name, param in model.namedparams() if without(param)}


NORM = {"/norm/gamma", "/norm/beta", "/block/norm/gamma", "/block/norm/beta"}


BY_KIND = [
    (None, set()),
    ((), set()),
    ("ndim <= 1", NORM | {"/stem/b", "/block/temperature", "/block/fc/b"}),
    (L.BatchNormalization, NORM),
    (MyNorm, set()),
    (Block, {"/block/temperature"}),
    ((L.BatchNormalization, L.Linear), NORM | {"/block/fc/W", "/block/fc/b"}),
    (("ndim <= 1", L.Linear), NORM | {"/stem/b", "/block/temperature", "/block/fc/W", "/block/fc/b"}),
]


@pytest.mark.parametrize(("kinds", "expected"), BY_KIND)
def test_parameters_are_excluded_by_kind(kinds, expected):
    assert excluded(kinds, Net()) == expected


def test_a_subclass_is_of_the_kind():
    assert excluded(L.BatchNormalization, MyNorm(3)) == {"/gamma", "/beta"}


def test_converted_links_stay_of_their_kind():
    model = Net()
    mixprec.convert(model)
    assert excluded(L.BatchNormalization, model) == NORM


@pytest.mark.parametrize("kinds", ["ndim <= 1", (L.BatchNormalization, "ndim <= 1")])
def test_a_parameter_counts_when_it_has_a_shape(kinds):
    model = chainer.Link()
    with model.init_scope():
        model.b = chainer.Parameter(0)
    without = NoDecay(kinds).of(model)
    assert not without(model.b)
    model.b.initialize((3,))
    assert without(model.b)


def test_of_a_link_a_parameter_counts_before_it_has_a_shape():
    model = Net()
    assert NoDecay(L.Convolution2D).of(model)(model.stem.W)


def test_links_and_parameters_that_come_late():
    model = chainer.ChainList(L.Linear(2, 2))
    without = NoDecay(L.BatchNormalization).of(model)
    assert not without(model[0].W)
    model.append(L.BatchNormalization(2))
    assert [without(param) for _, param in model.namedparams()] == [False, False, True, True]
    with model[1].init_scope():
        model[1].gamma = chainer.Parameter(np.ones(2, np.float32))
    assert without(model[1].gamma)
    assert not without(chainer.Parameter(np.ones(2, np.float32)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_answer_for_their_own_parameters(copied):
    model = L.BatchNormalization(2)
    without = NoDecay(L.BatchNormalization).of(model)
    assert without(model.gamma)
    other_model, other = copied((model, without))
    assert other(other_model.gamma)
    assert not other(model.gamma)


REFUSED = [
    *(("ndim<=1", "'ndim<=1'"), (True, "True"), (int, "the class int"), (L.Linear(2, 2), "Linear")),
    *(((L.Linear, None), "None"), ((L.Linear, ("ndim <= 1",)), "('ndim <= 1',)")),
    (np.zeros(2), "ndarray, shape (2,) float64"),
]


@pytest.mark.parametrize(("kinds", "found"), REFUSED)
def test_anything_else_is_refused_in_one_line(kinds, found):
    with pytest.raises(TypeError) as caught:
        NoDecay(kinds)
    assert str(caught.value) == (
        'no_decay must be "ndim <= 1", a link class such as L.BatchNormalization, a tuple of these, or None; '
        f"found {found}"
    )


def test_the_hook_leaves_out_marked_parameters():
    hook = NoDecay("ndim <= 1").hook(optimizer_hooks.WeightDecay(0.5))
    assert isinstance(hook, DecayOfSome)
    assert (hook.name, hook.timing, hook.call_for_each_param) == ("WeightDecay", "pre", True)
    model = chainer.ChainList(L.Linear(2, 2), L.Linear(2, 2))
    optimizer = optimizers.SGD(lr=1).setup(model)
    optimizer.add_hook(hook)
    model[1].W.no_decay = True
    model[0].W.no_decay = False
    for param in model.params():
        param.array[...] = 4
        param.grad = np.zeros_like(param.array)
    hook.hook.rate = 0.25
    optimizer.update()
    assert [param.array.flat[0] for _, param in model.namedparams()] == [3, 3, 4, 3]
    optimizer.remove_hook("WeightDecay")


def test_hooks_that_need_no_other_stay_as_they_are():
    decay, clipping = optimizer_hooks.WeightDecay(0.5), optimizer_hooks.GradientClipping(1)
    assert NoDecay(None).hook(decay) is decay
    assert NoDecay("ndim <= 1").hook(clipping) is clipping


WITHOUT_DECAY = [
    (optimizers.AdamW(weight_decay_rate=0.5), {"weight_decay_rate": 0.0}),
    (optimizers.MSVAG(weight_decay_rate=0.5), {"weight_decay_rate": 0.0}),
    (mixprec.LARS(weight_decay=0.5), {"weight_decay": 0.0, "adapt": False}),
    (mixprec.LAMB(weight_decay=0.5), {"weight_decay": 0.0, "adapt": False}),
    (optimizers.MomentumSGD(), {}),
]


@pytest.mark.parametrize(("optimizer", "changed"), WITHOUT_DECAY, ids=lambda value: type(value).__name__)
def test_rules_go_without_their_own_decay(optimizer, changed):
    rule, other = optimizer.create_update_rule(), optimizer.create_update_rule()
    before = optimizer.hyperparam.get_dict()
    NoDecay.apply(rule)
    assert rule.hyperparam.get_dict() == {**before, **changed}
    assert other.hyperparam.get_dict() == optimizer.hyperparam.get_dict() == before


def test_the_report_names_chainers_hook_where_it_acts():
    model = L.Linear(2, 2)
    optimizer = mixprec.MixedPrecisionOptimizer(optimizers.SGD(), no_decay="ndim <= 1").setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(0.1))
    paths = {row["name"]: row["path"] for row in json.loads(optimizer.report().to_json())["parameters"]}
    assert paths == {"/W": "batched: WeightDecay, SGDRule", "/b": "batched: SGDRule"}
