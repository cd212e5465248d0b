"""Links that stay in float32 in a converted model: which ones, and that all that runs in them does."""

import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.rewrite.fusions import RELU
from tests.cases import first


class Head(chainer.Chain):
    """Functions of every kind of rule; it notes the dtypes that it sees."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, 8, 1)
            self.bn = L.BatchNormalization(8)
            self.fc = L.Linear(None, 4)

    def forward(self, x, outer):
        self.elsewhere = outer.held
        h = F.relu(self.bn(self.conv(x)))
        h = F.max_pooling_2d(h * F.sigmoid(x) + F.tanh(self.elsewhere), 2)
        y = self.fc(F.dropout(h, 0.0))
        y = F.matmul(F.softmax(y), outer.plain.W, transb=True)
        outer.seen = [each.dtype.name for each in (x, h, F.relu(self.elsewhere), y, F.forget(F.tanh, y))]
        return {"y": y, "same": x}


class Net(chainer.Chain):
    """A trunk in 16 bits, the head between, and a layer in 16 bits after it; ``plain`` is used by both."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.head = Head()
            self.plain = L.Linear(4, 4)

    def forward(self, x):
        h = self.held = F.relu(self.bn(self.conv(x)))
        found = self.head(h, outer=self)
        self.after = self.plain(found["y"]).dtype.name
        self.results = found["y"].dtype.name, found["same"].dtype.name
        return self.plain(found["y"])


def _net():
    np.random.seed(0)
    net = Net()
    net(x())  # initializes it
    return net


def x():
    return np.random.RandomState(1).normal(size=(4, 3, 4, 4)).astype(np.float32)


@pytest.mark.parametrize(("compute", "layout"), [("float16", "nhwc"), ("float16", "nchw"), ("bfloat16", "nhwc")])
@pytest.mark.parametrize("keep", ["/head", Head], ids=["pattern", "class"])
def test_all_that_runs_in_a_link_that_is_kept_is_float32(keep, compute, layout):
    net = _net()
    report = mixprec.convert(net, x(), compute=compute, layout=layout, keep_float32=(keep,))
    net.cleargrads()
    F.sum(net(x()) ** 2).backward(loss_scale=16.0)
    assert set(net.seen) == set(net.results) == {"float32"}
    assert net.after == compute
    assert {row.name: (row.after, row.why) for row in report.links} == {
        "/bn": ("float32", "statistics"),
        "/conv": (compute, "multiplied with activations"),
        "/head/bn": ("float32", "keep_float32"),
        "/head/conv": ("float32", "keep_float32"),
        "/head/fc": ("float32", "keep_float32"),
        "/plain": (compute, "multiplied with activations"),
    }
    assert {name: param.grad.dtype.name for name, param in net.namedparams()} == {
        name: param.dtype.name for name, param in net.namedparams()
    }


def test_with_all_links_kept_results_and_gradients_are_those_of_float32():
    found = []
    for options in ({"compute": "float32"}, {"keep_float32": ("/",)}):
        net = _net()
        mixprec.convert(net, x(), **options)
        net.cleargrads()
        y = net(x())
        F.sum(y**2).backward()
        found.append([y.array, *(param.grad for _, param in sorted(net.namedparams()))])
    for expected, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_images_go_in_and_out_in_nhwc():
    class Between(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.a, self.b, self.c = (L.Convolution2D(8, 8, 3, pad=1) for _ in range(3))

        def forward(self, x):
            return F.mean(self.c(self.b(self.a(x))), axis=(2, 3))

    images = np.random.RandomState(0).normal(size=(2, 8, 4, 4)).astype(np.float32)
    report = mixprec.convert(Between(), images, keep_float32=("/b",))
    assert [(each.direction, each.link) for each in report.conversions] == [("to NHWC", "/a")]


def test_normalizations_around_it_are_fused():
    trunk = [L.Convolution2D(3, 8, 1), L.BatchNormalization(8), F.relu]
    model = chainer.Sequential(*trunk, L.Convolution2D(8, 8, 1), L.BatchNormalization(8), F.relu)
    fused = mixprec.convert(model, x(), keep_float32=("/2", "/3")).fused
    assert (fused[RELU], sum(fused.values())) == (2, 2)


def test_the_wanted_conversion_counts_and_revert_gives_all_back():
    net = _net()
    mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(0.1)).setup(net)  # whose masters keep the bits
    before = {name: param.array.copy() for name, param in net.namedparams()}

    def dtypes():
        return {name for name, param in net.namedparams() if param.dtype == np.float16}

    mixprec.convert(net, keep_float32=("/head",))
    kept = dtypes()
    assert kept == {"/conv/W", "/plain/W", "/plain/b"}
    mixprec.convert(net, keep_float32=("/head",))
    assert dtypes() == kept
    mixprec.convert(net)
    assert dtypes() == kept | {"/head/conv/W", "/head/conv/b", "/head/fc/W", "/head/fc/b"}
    mixprec.convert(net, keep_float32=["/*"])
    assert not dtypes()
    mixprec.revert(net)
    for name, param in net.namedparams():
        np.testing.assert_array_equal(param.array, before[name])


@pytest.mark.parametrize("copied", [copy.deepcopy, Net.copy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_keep_it(copied):
    net = _net()
    mixprec.convert(net, x(), keep_float32=("/head",))
    for name in ("held", "seen"):
        delattr(net, name)
    del net.head.elsewhere
    again = copied(net)
    again(x())
    assert set(again.seen) == {"float32"}


def test_a_link_at_two_places_and_a_parameter_of_two_links_stay_in_float32():
    class Tied(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.embed = L.EmbedID(5, 4)
                self.a = chainer.Sequential(L.Linear(4, 4))
                self.b = chainer.Sequential(self.a[0])
                self.out = L.Linear(4, 5)
                self.out.W = self.embed.W

        def forward(self, x):
            return self.out(self.b(self.a(self.embed(x))))

    for _ in range(2):
        tied = Tied()
        mixprec.convert(tied, np.arange(3, dtype=np.int32), keep_float32=("/b", "/out"))
        assert {param.dtype.name for param in tied.params()} == {"float32"}


def test_a_part_that_is_recomputed_is_computed_as_it_was():
    found = []
    for recomputed in (False, True):
        net = _net()
        mixprec.convert(net, x(), keep_float32=("/head",))
        mixprec.recompute(net.head, recomputed)
        net.cleargrads()
        F.sum(net(x()) ** 2).backward()
        found.append({name: param.grad for name, param in net.namedparams()})
    for name, gradient in found[0].items():
        np.testing.assert_array_equal(found[1][name], gradient, name)


NO_MATCHES = [
    (("/ot",), r"keep_float32: '/ot' matches no link; did you mean '/out'\?"),
    ((L.EmbedID,), "keep_float32: no link is of the class EmbedID; there are Chain, Sequential, Linear"),
    (("/fc", 3), 'keep_float32 must be a tuple of patterns such as "/fc/\\*" and of classes of links; found 3 in it'),
    ("/out", "keep_float32 must be a tuple of .*; found str"),
]


@pytest.mark.parametrize(("keep", "message"), NO_MATCHES)
def test_what_matches_nothing_is_an_error_and_changes_nothing(keep, message):
    model = chainer.Chain(out=L.Linear(4, 2), body=chainer.Sequential(L.Linear(4, 4)))
    with pytest.raises((TypeError, ValueError), match=f"^{message}$"):
        mixprec.convert(model, keep_float32=keep)
    assert model.out.W.dtype == np.float32


def _rmse(compute=None, keep=()):
    """Trains on targets 1e4 + (14 +- 5), with the bias started at 1e4."""
    random = np.random.RandomState(0)
    inputs = random.normal(size=(64, 4)).astype(np.float32)
    targets = 1e4 + 14 + 5 * np.tanh(inputs[:, :1] + inputs[:, 1:2]) + random.normal(size=(64, 1))
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(4, 16), F.tanh, L.Linear(16, 1, initial_bias=1e4))
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam(0.1), loss_scale=None).setup(model)
    if compute is not None:
        mixprec.convert(model, inputs, compute=compute, keep_float32=keep)
    for _ in range(120):
        optimizer.update(lambda: F.mean_squared_error(model(inputs), targets.astype(np.float32)))
    return float(np.sqrt(np.mean((model(inputs).array - targets) ** 2)))


@pytest.mark.parametrize(("compute", "harm"), first(1, [("float16", 1.3), ("bfloat16", 10)]))  # in steps of 8 and of 64
def test_a_regression_with_a_large_offset_trains_as_in_float32(compute, harm):
    plain = _rmse()
    assert plain < 1.2
    assert _rmse(compute) > harm * plain
    assert _rmse(compute, ("/1",)) < 1.03 * plain
