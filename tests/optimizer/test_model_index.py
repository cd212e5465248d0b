"""ModelIndex: links and parameters of a model without a walk at every step, and never others than a walk would give."""

import gc
import operator
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mixprec.optimizer.model_index import ModelIndex
from tests.cases import tries


def _param():
    return chainer.Parameter(np.zeros(2, np.float32))


class Leaf(chainer.Link):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.w, self.b = _param(), _param()


def _nested():
    return chainer.Chain(
        leaf=Leaf(),
        chain=chainer.Chain(inner=Leaf()),
        chainlist=chainer.ChainList(Leaf(), chainer.Chain(deep=Leaf())),
        sequential=chainer.Sequential(Leaf(), F.relu, Leaf(), chainer.Sequential(Leaf())),
    )


def assert_same(index, model):
    """What it has is what Chainer's walks give now."""
    found, expected = index.namedparams, list(model.namedparams())
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert all(one is other for (_, one), (_, other) in zip(found, expected, strict=True))
    assert len(index.params) == len(expected)
    assert all(one is other for one, (_, other) in zip(index.params, expected, strict=True))


def _in_scope(link, name, value):
    with link.init_scope():
        setattr(link, name, value)


def _list_of(links, *new):
    links[:] = new


# What a user may do to the links and parameters of a model like that of `_nested`.
CHANGES = {
    "add a parameter": lambda m: _in_scope(m.leaf, "new", _param()),
    "add a parameter directly": lambda m: m.leaf.add_param("new", (3,)),
    "add an uninitialized one": lambda m: _in_scope(m.chain, "late", chainer.Parameter()),
    "replace a parameter": lambda m: setattr(m.leaf, "w", _param()),
    "replace a parameter in scope": lambda m: _in_scope(m.leaf, "w", _param()),
    "delete a parameter": lambda m: delattr(m.leaf, "w"),
    "add a link": lambda m: _in_scope(m, "new", Leaf()),
    "add a link deep": lambda m: m.chainlist[1].add_link("new", Leaf()),
    "add an empty link": lambda m: m.add_link("new", chainer.Chain()),
    "replace a link": lambda m: setattr(m, "leaf", Leaf()),
    "replace a link deep": lambda m: setattr(m.chainlist[1], "deep", Leaf()),
    "delete a link": lambda m: delattr(m, "leaf"),
    "delete an inner link": lambda m: delattr(m.chain, "inner"),
    "list: append": lambda m: m.chainlist.append(Leaf()),
    "list: replace": lambda m: operator.setitem(m.chainlist, 0, Leaf()),
    "list: replace a slice": lambda m: _list_of(m.chainlist, Leaf(), Leaf()),
    "list: delete": lambda m: operator.delitem(m.chainlist, 0),
    "list: insert": lambda m: m.chainlist.insert(0, Leaf()),
    "list: reverse": lambda m: _list_of(m.chainlist, *list(m.chainlist)[::-1]),
    "list: a parameter of its own": lambda m: _in_scope(m.chainlist, "scale", _param()),
    "sequential: append": lambda m: m.sequential.append(Leaf()),
    "sequential: replace by a function": lambda m: operator.setitem(m.sequential, 0, F.relu),
    "sequential: pop": lambda m: m.sequential.pop(),
    "sequential: extend": lambda m: m.sequential.extend(chainer.Sequential(Leaf(), Leaf())),
    "sequential in a sequential": lambda m: m.sequential[3].append(Leaf()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    """Once; afterwards all is as it was again."""
    model = _nested()
    index = ModelIndex(model)
    assert_same(index, model)
    assert not index.refresh()
    before = list(index.params)
    CHANGES[change](model)
    changed = index.refresh()
    assert_same(index, model)
    same = len(before) == len(index.params) and all(map(operator.is_, before, index.params))
    assert changed or same
    assert same == (change == "add an empty link")
    kept = index.namedparams
    assert not index.refresh()
    assert index.namedparams is kept


def test_nothing_is_walked_while_nothing_changes():
    """The list of parameters is the same object; that of the links, too."""
    model = _nested()
    index = ModelIndex(model)
    namedparams, params = index.namedparams, index.params
    model.leaf.w.array += 1
    model.leaf.w.grad = np.ones(2, np.float32)
    model.leaf.note = "an attribute that is neither parameter nor link"
    model.leaf.add_persistent("count", 3)
    model.cleargrads()
    assert not index.refresh()
    assert index.namedparams is namedparams
    assert index.params is params


def test_deleted_and_added_between_two_looks():
    """The names are as they were, and nothing else."""
    model = chainer.Chain(leaf=Leaf())
    index = ModelIndex(model)
    del model.leaf
    gc.collect()
    model.add_link("leaf", Leaf())
    assert index.refresh()
    assert_same(index, model)
    kept = model.leaf
    del model.leaf
    model.add_link("leaf", kept)
    assert not index.refresh()
    assert_same(index, model)


def test_a_parameter_under_another_name_has_that_name():
    """Also if the order of parameters is the same as before."""
    model = chainer.Chain(leaf=Leaf())
    index = ModelIndex(model)
    kept = model.leaf.w
    del model.leaf.w
    with model.leaf.init_scope():
        model.leaf.x = kept
    index.refresh()
    assert_same(index, model)
    assert dict(index.namedparams)["/leaf/x"] is kept


def test_two_parameters_swapped():
    model = chainer.Chain(leaf=Leaf())
    index = ModelIndex(model)
    leaf = model.leaf
    leaf.w, leaf.b = leaf.b, leaf.w
    assert index.refresh()
    assert_same(index, model)


def test_two_links_swapped():
    model = chainer.Chain(one=Leaf(), other=Leaf(), several=chainer.ChainList(Leaf(), Leaf()))
    index = ModelIndex(model)
    model.one, model.other = model.other, model.one
    assert index.refresh()
    assert_same(index, model)
    model.several[0], model.several[1] = model.several[1], model.several[0]
    assert index.refresh()
    assert_same(index, model)


def test_shared_links_and_parameters_occur_as_often_as_chainer_has_them():
    shared = Leaf()
    model = chainer.Chain(one=shared, other=chainer.ChainList(shared, Leaf()))
    with model.init_scope():
        model.w = shared.w
    index = ModelIndex(model)
    assert_same(index, model)
    assert sum(param is shared.w for param in index.params) == 3
    shared.w = _param()
    assert index.refresh()
    assert_same(index, model)
    assert sum(param is shared.w for param in index.params) == 2


def test_a_link_that_is_taken_away_is_let_go():
    """After the next look."""
    model = chainer.Chain(leaf=Leaf(), other=Leaf())
    index = ModelIndex(model)
    gone = weakref.ref(model.leaf.w)
    del model.leaf
    index.refresh()
    gc.collect()
    assert gone() is None


# --- links that walk in ways of their own


class Filtered(chainer.Chain):
    """Hides the parameters of what is frozen."""

    def __init__(self):
        super().__init__(seen=Leaf(), hidden=Leaf())
        self.frozen = {"hidden"}

    def namedparams(self, include_uninit=True):
        for name, param in super().namedparams(include_uninit):
            if name.split("/")[1] not in self.frozen:
                yield name, param


class Elsewhere(chainer.Link):
    """Has parameters, and links with some, in a list that Chainer does not know."""

    def __init__(self):
        super().__init__()
        self.layers = [Leaf()]

    def namedparams(self, include_uninit=True):
        for number, layer in enumerate(self.layers):
            for name, param in layer.namedparams(include_uninit):
                yield f"/{number}{name}", param

    def params(self, include_uninit=True):
        for _, param in self.namedparams(include_uninit):
            yield param


def _unfreeze(link):
    link.frozen = set()


def _another_layer(link):
    link.layers.append(Leaf())


def _another_first_layer(link):
    link.layers[0] = Leaf()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("kind", "change"), [(Filtered, _unfreeze), (Elsewhere, _another_layer), (Elsewhere, _another_first_layer)]
)
def test_links_with_walks_of_their_own(kind, change, inside):
    """Whatever they do, wherever they are."""
    own = kind()
    model = chainer.Chain(first=Leaf(), own=chainer.ChainList(own)) if inside else own
    index = ModelIndex(model)
    assert_same(index, model)
    assert not index.refresh()
    change(own)
    assert index.refresh()
    assert_same(index, model)
    assert not index.refresh()


def test_a_link_with_a_walk_of_its_own_comes_late():
    model = chainer.Chain(leaf=Leaf())
    index = ModelIndex(model)
    model.add_link("own", Elsewhere())
    assert index.refresh()
    _another_layer(model.own)
    assert index.refresh()
    assert_same(index, model)
    del model.own
    assert index.refresh()
    kept = index.namedparams
    assert not index.refresh()
    assert index.namedparams is kept


def test_chainers_own_links_are_walked_once():
    """None of these has a walk that the index must ask every time."""
    models = [
        L.Classifier(L.MLPConvolution2D(3, (4, 5), 1)),
        L.StatefulZoneoutLSTM(3, 2),
        L.NStepBiLSTM(1, 3, 2, 0.0),
        L.Inception(3, 2, 2, 2, 2, 2, 2),
        chainer.Sequential(L.Linear(3, 2), F.relu).repeat(2),
        L.Scale(W_shape=(3,), bias_term=True),
    ]
    index = ModelIndex(chainer.ChainList(*models))
    kept = index.namedparams
    assert len(kept) > 30
    assert not index.refresh()
    assert index.namedparams is kept


# --- any sequence of changes


@settings(max_examples=tries(20), stateful_step_count=30)
class AnyChanges(RuleBasedStateMachine):
    """A model whose parts are added, moved, replaced and removed, and a index that looks at it now and then."""

    def __init__(self):
        super().__init__()
        self.model = _nested()
        self.index = ModelIndex(self.model)
        self.looked = True

    def _links(self, *kinds):
        return [link for link in self.model.links() if isinstance(link, kinds)]

    @rule(data=st.data(), name=st.sampled_from("abw"))
    def set_parameter(self, data, name):
        link = data.draw(st.sampled_from(self._links(chainer.Link)))
        with link.init_scope():
            setattr(link, name, _param())
        self.looked = False

    @rule(data=st.data())
    def delete_parameter(self, data):
        link = data.draw(st.sampled_from(self._links(chainer.Link)))
        if link._params:
            delattr(link, data.draw(st.sampled_from(sorted(link._params))))
        self.looked = False

    @rule(data=st.data(), name=st.sampled_from("xy"))
    def set_link(self, data, name):
        chain = data.draw(st.sampled_from(self._links(chainer.Chain)))
        link = data.draw(st.sampled_from([Leaf, chainer.Chain, chainer.ChainList]))()
        if name in chain._children:
            setattr(chain, name, link)
        else:
            chain.add_link(name, link)
        self.looked = False

    @rule(data=st.data())
    def delete_link(self, data):
        chain = data.draw(st.sampled_from(self._links(chainer.Chain)))
        if chain._children:
            delattr(chain, data.draw(st.sampled_from(sorted(chain._children))))
        self.looked = False

    @rule(data=st.data())
    def change_list(self, data):
        lists = self._links(chainer.ChainList)
        if lists:
            several = data.draw(st.sampled_from(lists))
            what = data.draw(st.sampled_from(["append", "delete", "replace"]))
            if what == "append" or not len(several):
                several.append(Leaf())
            elif what == "delete":
                del several[0]
            else:
                several[0] = Leaf()
        self.looked = False

    @precondition(lambda self: not self.looked)
    @rule()
    def look(self):
        self.index.refresh()
        assert_same(self.index, self.model)
        self.looked = True

    @invariant()
    def is_right_after_a_look(self):
        if self.looked:
            assert not self.index.refresh()
            assert_same(self.index, self.model)


TestAnyChanges = AnyChanges.TestCase
