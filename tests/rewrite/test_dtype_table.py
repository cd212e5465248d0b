"""The table of Chainer's functions is complete, and no function of a converted model overflows where it adds up."""

import importlib
import pkgutil

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import function, function_node

import mixprec
from mixprec.rewrite import dtype_rules, dtype_table
from mixprec.rewrite.fusions import NAMES
from tests.cases import in_turn
from tests.rewrite.overflows import CASES, LARGEST

SETS = {
    name: getattr(dtype_table, name)
    for name in ("COMPUTE", "FLOAT32", "FLOAT32_INSIDE", "FLOAT32_IF_ADDING", "AS_IT_IS", "ELEMENTWISE", "MOVING")
} | {"BACKWARD": dtype_table.BACKWARD, "OTHERS": dtype_table.OTHERS}
# What others inherit from.
ABSTRACT = {"BaseNStepRNN", "IndexSelectorBase", "Pooling2D", "SelectorBase", "_PoolingND"}
PACKAGES = ("distributions", "functions", "graph_optimizations", "links")

# Functions that chainer.functions exports, of which each element of the result comes from one of each input. Their
# gradient as well, or it is that of F.sum_to.
NOTHING_IS_ADDED = {
    *("absolute", "arccos", "arcsin", "arctan", "arctan2", "arctanh", "argmax", "argmin", "ceil", "clip"),
    *("clipped_relu", "cos", "crelu", "digamma", "elu", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "fix", "floor"),
    *("fmod", "gumbel_softmax", "hard_sigmoid", "leaky_relu", "linear_interpolate", "log", "log10", "log1p", "log2"),
    *("maximum", "minimum", "ndtr", "ndtri", "polygamma", "relu", "relu6", "rrelu", "rsqrt", "selu", "sigmoid"),
    *("sign", "sin", "softplus", "sqrt", "square", "squared_difference", "tan", "tanh", "zeta"),
    *("cast", "concat", "copy", "depth2space", "diagonal", "dstack", "expand_dims", "flatten", "flip", "fliplr"),
    *("flipud", "hstack", "identity", "max", "maxout", "min", "moveaxis", "spatial_pyramid_pooling_2d"),
    *("pad", "pad_sequence", "permutate", "reshape"),
    *("rollaxis", "select_item", "separate", "shift", "space2depth", "split_axis", "squeeze", "stack", "swapaxes"),
    *("transpose", "transpose_sequence", "vstack", "where"),
    *("dropout", "zoneout"),
    *("lstm", "slstm", "tree_lstm"),
    # made of linear layers and functions of the line before, or one node of cuDNN
    *("n_step_bigru", "n_step_bilstm", "n_step_birnn", "n_step_gru", "n_step_lstm", "n_step_rnn"),
}


def _nodes():
    """Returns all classes of function nodes of Chainer by their name."""
    for package in (importlib.import_module(f"chainer.{name}") for name in PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", lambda name: None):
            if "caffe" not in module.name:  # its protobuf is of another version
                importlib.import_module(module.name)
    found = {}
    for base in (function.Function, function_node.FunctionNode):
        for cls in _subclasses(base):
            if cls.__module__.startswith("chainer."):
                assert found.setdefault(cls.__name__, cls) is cls, f"two classes are called {cls.__name__}"
    return found


def _subclasses(cls):
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def test_every_function_node_of_chainer_is_in_one_class_of_the_table():
    """``CumSum`` and ``CumProd`` were in it, which nobody has."""
    for name, cls in _nodes().items():
        places = [key for key, names in SETS.items() if name in names]
        places += ["losses"] * cls.__module__.startswith(dtype_table.FLOAT32_PACKAGES) + ["abstract"] * (
            name in ABSTRACT
        )
        assert len(places) == 1, f"{cls.__module__}.{name} is in {places or 'no class'}"
    surplus = set().union(*SETS.values()) - _nodes().keys()
    assert not surplus, f"Chainer has no {sorted(surplus)}"


def test_every_function_that_chainer_exports_is_tried_or_adds_nothing():
    exported = {name for name, value in vars(F).items() if callable(value) and not name.startswith("_")}
    tried = {name.split()[0] for name in CASES} & exported
    assert not tried & NOTHING_IS_ADDED
    assert exported - tried - NOTHING_IS_ADDED == set()


def test_a_node_that_is_not_in_the_table_is_announced_once(caplog):
    cls = type("Newer", (function_node.FunctionNode,), {"__module__": "chainer.functions.math.newer"})
    dtype_rules.rule_of(cls)
    dtype_rules.rule_of(cls)
    assert [record.getMessage() for record in caplog.records] == [
        "chainer.functions.math.newer.Newer is a function of Chainer that mixprec does not know: computed in the dtype "
        "of its inputs"
    ]


TOLERANCE = 4 * 2.0**-11  # of the largest value: a few roundings to float16


class Model(chainer.Chain):
    """A model that applies a function to what it gets."""

    def __init__(self, case):
        super().__init__()
        self.case = case

    def forward(self, *inputs):
        return self.case.function(*inputs)


def _results(case, layout=None):
    """Returns the result of a case, and gradients of its inputs: in a converted model, or in plain Chainer."""
    model = Model(case)
    if layout is not None:
        mixprec.convert(model, layout=layout, fuse=layout == "nhwc")
    inputs = [chainer.Variable(x.astype(np.float32 if layout is None else np.float16)) for x in case.inputs]
    y = model(*inputs)
    if case.differentiable:
        assert y.dtype == np.float32
        y.grad = np.ones_like(y.array) if case.gradient is None else case.gradient(*y.shape).astype(np.float32)
        y.backward()
    return [y.array, *(x.grad for x in inputs)]


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("name", "layout"), in_turn(CASES, ["nchw", "nhwc"]))
def test_nothing_overflows_where_a_function_adds_up_or_multiplies_up(name, layout):
    """Results are those of float32, however large; gradients as well where float16 can hold them."""
    expected, found = _results(CASES[name]), _results(CASES[name], layout)
    for place, (plain, converted) in enumerate(zip(expected, found, strict=True)):
        if plain is None:
            assert converted is None
            continue
        fits = np.isfinite(plain) if place == 0 else np.abs(plain) <= LARGEST
        assert np.isfinite(converted[fits]).all()
        difference = np.abs(converted[fits].astype(np.float64) - plain[fits])
        assert np.all(difference <= TOLERANCE * np.abs(plain[fits]).max(initial=0) + 1e-6)


@pytest.mark.parametrize("example", [False, True])
def test_a_loss_that_is_made_of_several_nodes_takes_what_a_batch_normalization_defers(example):
    """As the products in it are not seen, the batch normalization must not be fused with the ReLU alone."""

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.conv = L.Convolution2D(3, 8, 3, initialW=np.linspace(-1, 1, 216).astype("f").reshape(8, 3, 3, 3))
                self.bn = L.BatchNormalization(8)

        def forward(self, x):
            h = self.bn(self.conv(x))
            return F.gaussian_nll(F.relu(h), h, ln_var=np.zeros(h.shape, np.float32))

    x = np.random.RandomState(0).normal(size=(2, 3, 6, 6)).astype(np.float32)
    plain, converted = Net(), Net()
    report = mixprec.convert(converted, example=x if example else None)
    expected = plain(x), plain(x)
    found = converted(x), converted(x)
    assert report.fused == dict.fromkeys(NAMES, 0) | {"": 1}
    for one, other in zip(expected, found, strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(other.array, one.array, rtol=8 * TOLERANCE)
