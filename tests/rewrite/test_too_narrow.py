"""What convert says of weights and results that 16 bits cannot hold."""

import re

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import serializers

import mixprec
from mixprec.base import announcements
from mixprec.precision.lost_weights import path_of
from mixprec.precision.storage import in_float32

X = np.random.RandomState(0).normal(size=(16, 4)).astype(np.float32)


@pytest.fixture
def said(announced):
    """The warnings of the logger, each said anew."""
    return lambda: [record.getMessage() for record in announced.records]


class Net(chainer.Chain):
    """A layer ``out`` on two others, and what a model does with its result."""

    def __init__(self, result=lambda y: y, outputs=1, bias=0.0):
        super().__init__()
        self.result = result
        np.random.seed(0)
        with self.init_scope():
            self.hidden = L.Linear(4, 16)
            self.out = L.Linear(16, outputs, initial_bias=bias)

    def forward(self, x, *rest):
        return self.result(self.out(F.tanh(self.hidden(x))), *rest)


T = (X[:, :1] + 1e4).astype(np.float32)
OFFSET = {"bias": 1e4}
OUT = (
    r"the result of /out is (9999|10000|99\d\d)\.?\d* \+- 0\.\d+, in steps of (8 in float16|64 in bfloat16): "
    r'keep_float32=\("/out",\)'
)
NAMED = {
    "result": (OFFSET, X, OUT),
    "nested": ({**OFFSET, "result": lambda y: {"y": (F.reshape(y, (-1,)),)}}, X, OUT),
    "cast": ({**OFFSET, "result": lambda y: F.cast(y, "float32")}, X, OUT),
    "loss": ({**OFFSET, "result": F.mean_squared_error}, (X, T), OUT),
    "nll": ({**OFFSET, "result": lambda y, t: F.gaussian_nll(t, y, y * 0)}, (X, T), OUT),
    "one of three": ({"outputs": 3, "bias": np.array([0, 1e4, 5], "f")}, X, OUT),
    "constant": (
        {"result": lambda y: y + 1e4},
        X,
        r"the result of AddConstant in / is (9999|10000).*, in steps of \d+ in b?float16: F.cast\(x, .* of its inputs",
    ),
}


@pytest.mark.parametrize(("net", "example", "text"), NAMED.values(), ids=NAMED)
@pytest.mark.parametrize(("compute", "layout"), [("float16", "nhwc"), ("float16", "nchw"), ("bfloat16", "nhwc")])
def test_a_result_whose_spread_is_below_its_steps_is_named(said, net, example, text, compute, layout):
    report = mixprec.convert(Net(**net), example, compute=compute, layout=layout)
    (line,) = report.too_narrow
    assert re.fullmatch(text, line), line
    assert f"too narrow:           {line}\n" in str(report)
    assert said() == [f"mixprec.convert: {line}"]


def test_a_result_that_is_tiny_or_inf_in_float16_is_named():
    tiny = mixprec.convert(Net(lambda y: y * 1e-9), X).too_narrow
    assert re.fullmatch(r"the result of MulConstant in / is .*e-\d+, in steps of 5.96046e-08 in float16: .*", *tiny)
    large = mixprec.convert(L.Linear(4, 1, initialW=4e4), X).too_narrow
    assert re.fullmatch(r'the result of / is inf in float16, and \S+e\+05 in float32: keep_float32=\("/",\)', *large)


OVERFLOWING = [
    (lambda h: F.matmul(h, h, transa=True) / 1e6, "MatMul in /1", 'keep_float32=("/1",)'),
    (lambda h: F.square(h) / 1e3, "Square in /1", 'F.cast(x, "float32") of its inputs'),
    (lambda h: F.relu(F.where(h.array > 0, h * 1e-3, np.full(h.shape, -np.inf, h.dtype))), None, None),
]


@pytest.mark.parametrize(("function", "where", "cure"), OVERFLOWING, ids=["product", "elementwise", "masked"])
def test_a_function_that_overflows_is_named_if_the_result_shows_it(function, where, cure):
    class Middle(chainer.Chain):
        def forward(self, h):
            return function(h)

    net = chainer.Sequential(L.Linear(4, 8, initialW=1.0, nobias=True), Middle(), F.sum)
    found = mixprec.convert(net, np.full((3, 4), 1000, np.float32)).too_narrow
    text = f"the result of {where} is inf or NaN on the example, and so is what the model returns: {cure}"
    assert found == ([] if where is None else [text])


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("net", "example", "keep"),
    [
        ({"outputs": 10}, X, ()),
        ({"outputs": 10}, X[:1], ()),
        ({"outputs": 10, "bias": 4.6}, X, ()),
        ({"outputs": 10, "bias": 1e-8}, X, ()),
        ({"bias": 1e4}, np.ones((8, 4), np.float32), ()),
        ({"bias": 1e4}, X[:1], ()),
        ({"bias": 20.0, "result": lambda y: F.sigmoid(y * 0.01)}, X, ()),
        ({"outputs": 10, "result": lambda y: F.softmax(y * 0.01)}, X, ()),
        ({"result": lambda y: y * 0 + 7}, X, ()),
        ({"bias": 1e4}, X, ("/out",)),
    ],
    ids=["scores", "row of scores", "prior", "tiny", "equal rows", "one row", "sigmoid", "softmax", "same", "kept"],
)
def test_scores_constants_and_what_is_kept_are_not_named(said, net, example, keep, compute):
    assert mixprec.convert(Net(**net), example, compute=compute, keep_float32=keep).too_narrow == []
    assert said() == []


NARROWED = [
    ({"b": 2.1e5}, "float16", "/out/b becomes inf in float16 (1 of 1 elements)"),
    ({"b": 3.4e38}, "bfloat16", "/out/b becomes inf in bfloat16 (1 of 1 elements)"),
    ({"W": 2e-8}, "float16", "/out/W becomes 0 in float16 (16 of 16 elements)"),
    ({"W": 1e-41}, "bfloat16", "/out/W becomes 0 in bfloat16 (16 of 16 elements)"),
]


@pytest.mark.parametrize(("weights", "compute", "line"), NARROWED)
def test_a_weight_that_becomes_inf_or_0_is_named_by_convert_and_when_it_is_loaded(
    said, tmp_path, weights, compute, line
):
    net, loading, wrapped = Net(), Net(), Net()
    for name, value in weights.items():
        getattr(net.out, name).array[...] = value
    serializers.save_npz(tmp_path / "net.npz", net)
    (found,) = mixprec.convert(net, compute=compute).too_narrow
    assert found == f'{line}: keep_float32=("/out",)'
    assert said() == [f"mixprec.convert: {found}"]
    mixprec.convert(loading, compute=compute)
    mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(0.1)).setup(wrapped)
    mixprec.convert(wrapped, compute=compute)
    for model in (loading, wrapped):
        announcements._said.clear()
        serializers.load_npz(tmp_path / "net.npz", model)
        assert said()[-1].startswith(f"{line}: keep its link in float32")
    assert len(said()) == 3


def test_the_path_of_a_weight_goes_through_serializers_of_mixprec():
    """``setup`` replaces ``Link.serialize`` before ``convert`` does, or after it."""
    serializer = in_float32(in_float32(serializers.NpzDeserializer({}, "a/out/")))
    assert path_of(serializer, "W") == "/a/out/W"


def test_a_weight_that_a_layer_without_a_shape_gets_is_named(said):
    mixprec.convert(L.Linear(None, 2, initialW=1e5), X)
    assert said()[0].startswith("/W becomes inf in float16 (8 of 8 elements): keep its link in float32")


def test_some_small_weights_among_others_are_not_named(said):
    net = Net()
    net.hidden.W.array[:, 1:2] = 1e-9
    net.out.W.array[...] = 0
    assert mixprec.convert(net).too_narrow == []
    assert said() == []
