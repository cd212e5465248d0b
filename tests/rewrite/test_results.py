"""What leaves a converted model in objects: float32, as in tuples, lists and dicts."""

import collections
import dataclasses
import functools
import logging
import types
from typing import NamedTuple

import chainer
import chainer.distributions as D
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.rewrite import results
from tests.cases import in_turn


class Net(chainer.Chain):
    """A linear layer, of whose result ``function(net, h)`` makes what the model returns."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.init_scope():
            self.l = L.Linear(4, 4, initialW=np.eye(4) * 1.001)

    def forward(self, x):
        return self.function(self, self.l(x))


X = np.random.RandomState(0).normal(size=(3, 4)).astype(np.float32)


def result_of(function, compute="float16", **options):
    """Returns the net, and what it returns."""
    net = Net(function)
    mixprec.convert(net, compute=compute, **options)
    return net, net(X)


class Plain:
    """Attributes, and a value that is computed when it is asked for."""

    def __init__(self, h):
        self.h = h

    @functools.cached_property
    def double(self):
        return self.h * 2


class Slots:
    __slots__ = "__h", "missing"

    def __init__(self, h):
        self.__h = h

    h = property(lambda self: self.__h)


class Guarded(Slots):
    """With slots in its base and a ``__dict__`` of its own, neither of which can be set."""

    def __setattr__(self, name, value):
        if name == "more":
            raise AttributeError(name)
        super().__setattr__(name, value)


class Delegating(Plain):
    def __getattr__(self, name):
        return getattr(self._plain, name)


class ItemsAsAttributes(dict):
    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class DictWithAttributes(collections.OrderedDict):
    def __init__(self, h):
        super().__init__(items=h)
        self.h = h


class GetsItems(dict):
    __getattr__ = dict.__getitem__  # KeyError where copy.copy expects AttributeError


class Pair(NamedTuple):
    h: object
    other: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    h: object


class Lazy:
    """A bound method and a partial function of what it holds."""

    def __init__(self, h):
        self._h = h
        self.again = self.get
        self.product = functools.partial(F.matmul, h)

    def get(self):
        return self._h

    h = property(lambda self: self.again())


OBJECTS = {
    "attributes": Plain,
    "slots": Slots,
    "slots and attributes": Guarded,
    "__getattr__": Delegating,
    "named tuple": lambda h: Pair(h, 1),
    "namespace": lambda h: types.SimpleNamespace(h=h),
    "frozen": Frozen,
    "dict as attributes": lambda h: ItemsAsAttributes(h=h),
    "dict with attributes": DictWithAttributes,
    "dict that gets items": lambda h: GetsItems(h=h),
    "bound method": Lazy,
    "distribution": lambda h: Plain(D.Independent(D.Normal(h, F.exp(h))).mean),
}


@pytest.mark.parametrize(("name", "compute"), in_turn(OBJECTS, ["float16", "bfloat16"]))
def test_attributes_of_results_are_float32_and_gradients_flow_back(name, compute):
    net, result = result_of(lambda net, h: OBJECTS[name](h), compute)
    assert result.h.dtype == np.float32
    net.cleargrads()
    F.sum(result.h).backward()
    np.testing.assert_allclose(net.l.b.grad.astype(np.float32), 3)
    np.testing.assert_allclose(result.h.array, X, rtol=2e-2, atol=1e-2)


def test_all_ways_to_one_variable_lead_to_one():
    def several(net, h):
        inner = Plain(h)
        return {
            "h": h,
            "list": [inner, inner, Frozen((h, collections.deque([h], 5)))],
            "array": Plain(h.array),
            "user": users(h),
        }

    def users(h):
        return collections.ChainMap(collections.UserDict(h=collections.UserList([h])))

    _, result = result_of(several)
    first, second, frozen = result["list"]
    assert first is second
    assert type(frozen) is Frozen
    assert frozen.h[1].maxlen == 5
    assert all(each is result["h"] for each in (first.h, frozen.h[0], frozen.h[1][0]))
    assert result["user"]["h"][0] is result["h"]
    assert result["array"].h.dtype == np.float32


def test_cycles():
    def ring(net, h):
        head = this = Plain(h)
        for _ in range(300):  # as beams point to what they come from
            this.next = Plain(h)
            this = this.next
        this.next = [head]
        return head

    _, result = result_of(ring)
    this = result
    for _ in range(301):
        assert this.h is result.h
        this, before = this.next, this
    assert before.next == [result]
    assert result.h.dtype == np.float32


def test_values_that_were_asked_for_inside_are_float32_as_well():
    def asked(net, h):
        plain, normal = Plain(h), D.Normal(h, F.exp(h))
        return plain, normal, plain.double, normal.entropy

    _, (plain, normal, double, entropy) = result_of(asked)
    assert plain.double is double
    assert double.dtype == np.float32
    assert normal.entropy is entropy
    assert {each.dtype.name for each in (normal.loc, normal.scale, normal.sample(), normal.entropy)} == {"float32"}


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_images_that_wait_for_their_relu_leave_in_objects(layout):
    model = chainer.Sequential(L.Convolution2D(3, 8, 3), L.BatchNormalization(8), Plain)
    x = np.random.RandomState(1).normal(size=(2, 3, 6, 6)).astype(np.float32)
    mixprec.convert(model, x, layout=layout)
    h = model(x).h
    assert type(h) is chainer.Variable
    assert h.dtype == np.float32
    assert layout == "nchw" or h.array.flags.c_contiguous
    np.testing.assert_allclose(h.array.mean(axis=(0, 2, 3)), 0, atol=1e-3)


def test_the_model_keeps_its_own():
    def keeps(net, h):
        net.kept = Plain(h)
        net.kept.W = net.l.W
        return net.kept

    net, result = result_of(keeps)
    assert net.kept is not result
    assert net.kept.h.dtype == np.float16
    assert net.kept.W is net.l.W


def test_what_holds_nothing_in_16_bits_is_the_same_object():
    others = Plain(F.sum), [Plain(X)], logging.getLogger(), np, Net, {1: chainer.optimizers.SGD()}
    net, result = result_of(lambda net, h: (net, *others, h))
    assert result[0] is net
    assert all(a is b for a, b in zip(result[1:-1], others, strict=True))


def test_an_object_that_cannot_be_copied_is_named(caplog):
    class Closes(Plain):
        def __del__(self):
            pass

    _, result = result_of(lambda net, h: Closes(h))
    assert result.h.dtype == np.float16
    assert "Closes cannot be copied" in caplog.text


def test_objects_with_thousands_of_things_are_not_walked_through(caplog):
    def many(net, h):
        buffer = Plain([(1, X)] * (10 * results.LARGEST))
        buffer.numbers = list(range(10 * results.LARGEST))
        return types.SimpleNamespace(buffer=buffer, h=h)

    _, result = result_of(many)
    assert result.h.dtype == np.float32
    assert f"of the objects in a result {results.LARGEST} are looked at" in caplog.text
