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


CHANGES = []


def change(function):
    """What a user may do to the links and parameters of a model like that of ``_nested``."""
    CHANGES.append(function)
    return function


@change
def add_param(m):
    with m.leaf.init_scope():
        m.leaf.new = _param()


@change
def add_param_directly(m):
    m.leaf.add_param("new", (3,))


@change
def add_uninitialized(m):
    with m.chain.init_scope():
        m.chain.late = chainer.Parameter()


@change
def replace_param(m):
    m.leaf.w = _param()


@change
def replace_param_in_scope(m):
    with m.leaf.init_scope():
        m.leaf.w = _param()


@change
def delete_param(m):
    del m.leaf.w


@change
def add_link(m):
    with m.init_scope():
        m.new = Leaf()


@change
def add_link_deep(m):
    m.chainlist[1].add_link("new", Leaf())


@change
def add_link_without_parameters(m):
    m.add_link("new", chainer.Chain())


@change
def replace_link(m):
    m.leaf = Leaf()


@change
def replace_link_deep(m):
    m.chainlist[1].deep = Leaf()


@change
def delete_link(m):
    del m.leaf


@change
def delete_inner_link(m):
    del m.chain.inner


@change
def list_append(m):
    m.chainlist.append(Leaf())


@change
def list_add_link(m):
    m.chainlist.add_link(Leaf())


@change
def list_replace(m):
    m.chainlist[0] = Leaf()


@change
def list_replace_slice(m):
    m.chainlist[:] = [Leaf(), Leaf()]


@change
def list_delete(m):
    del m.chainlist[0]


@change
def list_insert(m):
    m.chainlist.insert(0, Leaf())


@change
def list_reverse(m):
    m.chainlist[:] = list(m.chainlist)[::-1]


@change
def list_own_param(m):
    with m.chainlist.init_scope():
        m.chainlist.scale = _param()


@change
def sequential_append(m):
    m.sequential.append(Leaf())


@change
def sequential_insert(m):
    m.sequential.insert(0, Leaf())


@change
def sequential_replace(m):
    m.sequential[0] = Leaf()


@change
def sequential_replace_by_function(m):
    m.sequential[0] = F.relu


@change
def sequential_delete(m):
    del m.sequential[0]


@change
def sequential_pop(m):
    m.sequential.pop()


@change
def sequential_extend(m):
    m.sequential.extend(chainer.Sequential(Leaf(), Leaf()))


@change
def sequential_in_sequential(m):
    m.sequential[3].append(Leaf())


@pytest.mark.parametrize("change", CHANGES, ids=lambda function: function.__name__)
def test_a_change_is_seen(change):
    """Once; afterwards all is as it was again."""
    model = _nested()
    index = ModelIndex(model)
    assert_same(index, model)
    assert not index.refresh()
    before = list(index.params)
    change(model)
    changed = index.refresh()
    assert_same(index, model)
    same = len(before) == len(index.params) and all(map(operator.is_, before, index.params))
    assert changed or same
    assert same == (change is add_link_without_parameters)
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


@pytest.mark.parametrize("kind", ["parameter", "link"])
def test_deleted_and_added_again_under_the_same_name(kind):
    """Another object under the same name is another parameter; the same object is the same one."""
    model = chainer.Chain(leaf=Leaf(), other=Leaf())
    owner, name = (model.leaf, "w") if kind == "parameter" else (model, "leaf")
    index = ModelIndex(model)
    kept = getattr(owner, name)
    delattr(owner, name)
    assert index.refresh()
    assert_same(index, model)
    for value, changed in ((kept, True), (kept, False), (Leaf() if kind == "link" else _param(), True)):
        if hasattr(owner, name):
            setattr(owner, name, value)
        else:
            with owner.init_scope():
                setattr(owner, name, value)
        assert index.refresh() == changed
        assert_same(index, model)


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


class Linked(chainer.Chain):
    """Adds links of its own to its children."""

    def __init__(self):
        super().__init__()
        self.more = [Leaf()]

    def links(self, skipself=False):
        yield from super().links(skipself)
        for link in self.more:
            yield from link.links()

    def children(self):
        yield from super().children()
        yield from self.more

    def namedparams(self, include_uninit=True):
        yield from super().namedparams(include_uninit)
        for number, link in enumerate(self.more):
            for name, param in link.namedparams(include_uninit):
                yield f"/more{number}{name}", param


def _unfreeze(link):
    link.frozen = set()


def _another_layer(link):
    link.layers.append(Leaf())


def _another_first_layer(link):
    link.layers[0] = Leaf()


def _another_link(link):
    link.more.append(Leaf())


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Filtered, _unfreeze),
        (Elsewhere, _another_layer),
        (Elsewhere, _another_first_layer),
        (Linked, _another_link),
    ],
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
