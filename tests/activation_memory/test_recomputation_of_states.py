"""``mixprec.recompute``: what links keep is as it was when they are called again, and holds no other steps."""

import collections
import gc
import types
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.activation_memory import recomputed
from mixprec.activation_memory.recomputed import Recomputed


def _same(what):
    return what


class Stateful(chainer.Chain):
    """A link with a function as its forward.

    Args:
        function: of the link and a variable (2, 4).
        attributes: of the link.
    """

    def __init__(self, function, **attributes):
        super().__init__()
        vars(self).update(attributes)
        self._function = function
        with self.init_scope():
            self.linear = L.Linear(4, 4)

    def forward(self, h):
        return self._function(self, h)


def nested_lists(again):
    def forward(link, h):
        link.states[0][0] = F.tanh(link.linear(h + link.states[0][0]))
        return link.states[0][0]

    return again(Stateful(forward, states=[[0]]))


def deque(again):
    def forward(link, h):
        link.states.append(len(link.states) + link.states[-1])
        return link.linear(h) * link.states[-1]

    return again(Stateful(forward, states=collections.deque([0, 0, 1], 3)))


def generator(again):
    return again(
        Stateful(lambda link, h: F.tanh(link.linear(h) * link.numbers.rand()), numbers=np.random.RandomState(0))
    )


def persistent_array(again):
    def forward(link, h):
        h = link.linear(h)
        link.mean *= 0.5
        link.mean += h.array.mean(0)
        return F.tanh(h - link.mean)

    link = Stateful(forward)
    link.add_persistent("mean", np.zeros(4, np.float32))
    return again(link)


def running_statistics_of_a_class_of_the_users(again):
    class Own(L.BatchNormalization):
        def forward(self, x):
            self.avg_mean *= 0.9
            self.avg_mean += x.array.mean(0)
            return super().forward(x)

    return again(Own(4))


def made_in_the_first_call(again):
    def forward(link, h):
        if not hasattr(link, "child"):
            with link.init_scope():
                link.child = L.LSTM(4, 4)
            link.add_persistent("count", 0)
        return F.sin(link.child(h))

    return again(Stateful(forward))


def _lstm(call):
    def made(again):
        link = Stateful(None)
        with link.init_scope():
            link.lstm = L.LSTM(4, 4)
        link._function = lambda link, h: call(again, link.lstm, h)
        return link

    made.__name__ = call.__name__
    return made


def as_a_keyword(again, lstm, h):
    return again(lambda h, cell: cell(h) * 2)(h, cell=lstm)


def of_an_object(again, lstm, h):
    holder = types.SimpleNamespace(cell=lstm)
    return again(lambda h: holder.cell(h) * 2)(h)


STATES = [
    nested_lists,
    deque,
    generator,
    persistent_array,
    running_statistics_of_a_class_of_the_users,
    made_in_the_first_call,
    *map(_lstm, [as_a_keyword, of_an_object]),
]


def _left(made, again):
    np.random.seed(0)
    link = made(again)
    x = chainer.Variable(np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
    h = F.sin(x)
    loss = sum(F.sum(link(h * scale) ** 2) for scale in range(1, 4))
    link.cleargrads()
    loss.backward()
    lasting = [value for each in link.links() for name, value in sorted(vars(each).items()) if name in each._persistent]
    gradients = [param.grad for _, param in sorted(link.namedparams())]
    return [np.array(each) for each in [x.grad, *gradients, *lasting, vars(link).get("mean", 0)] if each is not None]


@pytest.mark.parametrize("made", STATES, ids=lambda made: made.__name__)
def test_states_are_those_of_the_first_call(made):
    for one, other in zip(_left(made, mixprec.recompute), _left(made, _same), strict=True):
        np.testing.assert_array_equal(one, other)


def _attribute(link, h):
    link.h = F.tanh(link.linear(h))
    return link.h * 2


def _in_a_dict(link, h):
    link.states["h"] = F.tanh(link.linear(h))
    return link.states["h"] * 2


@pytest.mark.parametrize("forward", [_attribute, _in_a_dict])
def test_steps_do_not_hold_the_steps_before(forward):
    link, nodes = mixprec.recompute(Stateful(forward, states={})), []
    for _ in range(4):
        y = link(F.sin(chainer.Variable(np.ones((2, 4), np.float32))))
        nodes.append(weakref.ref(y.creator_node))
        F.sum(y).backward()
    del y
    gc.collect()
    assert [node() is None for node in nodes] == [True, True, True, False]
    assert isinstance(nodes[-1](), Recomputed)  # the attribute is a result of it


def test_iterators_are_refused():
    function = mixprec.recompute(sum)
    with pytest.raises(TypeError, match=r"^mixprec\.recompute\(sum\): an argument is an iterator, .*list_iterator"):
        function(iter([1, 2]))


@pytest.mark.parametrize("keeps", [False, True])
def test_what_keeps_the_inside_is_announced(keeps, monkeypatch):
    said, kept = [], []
    monkeypatch.setattr(recomputed, "announce", lambda message, *arguments: said.append(message % arguments))

    def function(h):
        h = F.exp(h)
        if keeps:
            kept.append(h)
        return F.exp(h)

    mixprec.recompute(function)(chainer.Variable(np.ones(3, np.float32)))
    assert [text.partition(":")[0] for text in said] == ["mixprec.recompute(function)"] * keeps
