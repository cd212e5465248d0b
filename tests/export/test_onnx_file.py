"""FP32 graphs in ONNX: the numbers of Chainer, whatever was done to the model, and their structure."""

import contextlib

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="ONNX is not installed: extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra export")

from onnx.reference import ReferenceEvaluator

import mixprec
import mixprec.export
from mixprec.export import chainer_graph
from mixprec.export.chainer_graph import variables
from mixprec.export.export_error import ExportError
from mixprec.export.onnx_file import IR_VERSION, OPSET
from mixprec.export.sessions import session as session_of
from models import MODELS
from tests.cases import first, pairs
from tests.export.networks import Everything, trained
from tests.zoo.models import CASES

BATCHES = (1, 2, 7)


def expected(model, *inputs):
    """The outputs of a model by plain Chainer: a list of arrays."""
    model = model.copy(mode="share")
    for link in model.links():
        if hasattr(link, "reset_state"):
            link.reset_state()
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return [variable.array for variable in variables(model(*inputs))]


def found(graph, *inputs, reference=False):
    """The same by onnxruntime, or by the evaluator of ONNX itself."""
    session = ReferenceEvaluator(graph) if reference else session_of(graph)
    return session.run(None, dict(zip([value.name for value in graph.graph.input], inputs, strict=True)))


def assert_close(first, second, bound=1e-5):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert np.abs(one - other).max(initial=0) <= bound * max(np.abs(other).max(initial=0), 1e-6)


def batch_of(array, size, seed=0):
    """Other rows of the same kind."""
    random = np.random.RandomState(seed)
    rows = array[random.randint(0, len(array), size)]
    return rows + random.normal(size=rows.shape).astype(array.dtype) if array.dtype.kind == "f" else rows


def operators(graph):
    return [node.op_type for node in graph.graph.node]


@pytest.mark.parametrize("reference", [False, True])
def test_most_of_what_networks_are_made_of(reference):
    model, images = trained(lambda: Everything(for_reference=reference), 3, 16, 16)
    graph = mixprec.export.onnx(model, images[:1])
    for batch in BATCHES:
        rows = batch_of(images, batch)
        assert_close(found(graph, rows, reference=reference), expected(model, rows))


# Each kind of block.
@pytest.mark.parametrize("name", first(0, ["resnet8", "resnet10_small", "resnet50", "resnext50_32x4d"], 3))
def test_our_models(name):
    model, images = trained(lambda: MODELS[name](10), 3, 32, 32, batch=4)
    graph = mixprec.export.onnx(model, images)
    for batch in BATCHES:
        rows = batch_of(images, batch)
        wanted = expected(model, rows)
        assert_close(found(graph, rows), wanted)
        assert_close(found(graph, rows, reference=True), wanted)
    assert set(operators(graph)) - {"MaxPool"} == {"Conv", "Relu", "Add", "AveragePool", "Reshape", "Gemm"}


# What a graph cannot hold: a function of Python, a number that is read on the way, rows that mean something.
REFUSED = {
    "adversarial": "BroadcastTo of / runs without backprop",
    "convolutional_lstm": "the model calls different functions for another batch size",
    "forgotten": "Convolution2DFunction of /conv1 runs without backprop",
    "functions_of_normalization": "BatchNormalization of / cannot be exported: it normalizes by the statistics of",
    "layer_normalization": "the model cannot be called on the example: ValueError",
    "odd_convolutions": "LocalConvolution2DFunction of /local cannot be exported: no ONNX equivalent is known",
    "read_by_array": "MulConstant of / has a constant that depends on the batch",
    "segnet": "Upsampling2D of / cannot be exported: no ONNX equivalent is known",
    "slices_of_pixels": "MulConstant of / has a constant that depends on the batch",
    "spectral_normalization": "output of the graph differs from Chainer's by .* on a batch of 1",
    "stateless_lstm": "EmbedIDFunction of /embed cannot be exported: .*ignore_label",
    "sum_with_an_array": "Add of / has a constant that depends on the batch",
    "user_function_of_channels": "ChannelShift of / cannot be exported",
    "user_functions_in_the_old_style": "OldChannelMean of / cannot be exported",
    "vae": "Gaussian of / cannot be exported",
    "where_and_minimum": "Where of / takes an array that no function has made",
    "word_vectors": "BilinearFunction of /bilinear cannot be exported",
}


def _called_with_arrays(case):
    inputs = case.inputs(np.random.RandomState(0))
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    # An ``if`` on numbers is decided once, and nothing tells.
    return (
        case.method == "__call__"
        and case is not CASES["data_dependent"]
        and all(isinstance(each, np.ndarray) for each in inputs)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if case.large and name != "resnet18" else ())
        for name, case in sorted(CASES.items())
        if _called_with_arrays(case)
    ],
)
def test_the_zoo_is_exported_or_refused(name):
    case = CASES[name]
    np.random.seed(0)
    model, inputs = case.build(), case.inputs(np.random.RandomState(0))
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    if isinstance(model, L.Classifier):
        model, inputs = model.predictor, inputs[:1]
    with chainer.using_config("train", True):
        model(*inputs)
    if name in REFUSED:
        with pytest.raises(ExportError, match=f"^{REFUSED[name]}"):
            mixprec.export.onnx(model, inputs)
        return
    graph = mixprec.export.onnx(model, inputs)
    for batch in BATCHES:
        rows = [batch_of(array, batch) for array in inputs]
        assert_close(found(graph, *rows), expected(model, *rows))


@pytest.mark.parametrize(
    ("compute", "has_optimizer"), first(1, [("float16", True), ("bfloat16", False), ("float32", True)])
)
def test_a_converted_model_has_the_graph_of_the_plain_one(compute, has_optimizer):
    """Bit for bit that of the float32 masters; without an optimizer that of the rounded weights."""
    model, images = trained(lambda: L.Classifier(MODELS["resnet8"](10)).predictor, 3, 16, 16)
    classifier = L.Classifier(model)
    if has_optimizer:
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.01)).setup(classifier)
    mixprec.convert(classifier, images, compute=compute)
    if has_optimizer:
        optimizer.update(classifier, images, np.zeros(len(images), "i"))
    before = {name: param.array.copy() for name, param in classifier.namedparams()}
    graph = mixprec.export.onnx(classifier, images)
    for name, param in classifier.namedparams():
        assert param.dtype == before[name].dtype
        np.testing.assert_array_equal(param.array, before[name])
    plain = MODELS["resnet8"](10)
    arrays = chainer.serializers.DictionarySerializer()
    arrays.save(classifier.predictor)
    chainer.serializers.NpzDeserializer(arrays.target).load(plain)
    assert mixprec.export.onnx(plain, images).graph == graph.graph
    if has_optimizer:
        optimizer.update(classifier, images, np.zeros(len(images), "i"))  # goes on


def test_the_structure():
    model, images = trained(Everything, 3, 16, 16)
    graph = mixprec.export.onnx(model, images, inputs=("images",), outputs=("classes", "pixels"))
    onnx.checker.check_model(graph, full_check=True)
    assert (graph.ir_version, graph.opset_import[0].version, len(graph.opset_import)) == (IR_VERSION, OPSET, 1)
    constants = {tensor.name for tensor in graph.graph.initializer}
    assert [value.name for value in graph.graph.input] == ["images"]
    assert [value.name for value in graph.graph.output] == ["classes", "pixels"]
    assert "BatchNormalization" not in operators(graph)
    assert "Dropout" not in operators(graph)
    taken = {name for node in graph.graph.node for name in node.input}
    assert constants <= taken
    for value, shape in zip((*graph.graph.input, *graph.graph.output), ((3, 16, 16), (4,), (6, 16, 16)), strict=True):
        dims = value.type.tensor_type.shape.dim
        assert dims[0].dim_param == "N"
        assert tuple(dim.dim_value for dim in dims[1:]) == shape


FOLDED = [
    (lambda: L.Convolution2D(4, 6, 3, groups=2), (4, 8, 8), ["Conv"]),
    (lambda: L.Convolution2D(4, 6, 3, nobias=True), (4, 8, 8), ["Conv"]),
    (lambda: L.Deconvolution2D(4, 6, 3, stride=2, groups=2), (4, 8, 8), ["ConvTranspose"]),
    (lambda: L.Linear(5, 6), (5,), ["Gemm"]),
    (lambda: F.relu, (6, 8, 8), ["Relu", "Mul", "Add"]),
]


@pytest.mark.parametrize(("build", "shape", "left"), FOLDED)
def test_normalizations_are_folded(build, shape, left):
    model, images = trained(lambda: chainer.Sequential(build(), L.BatchNormalization(6)), *shape)
    graph = mixprec.export.onnx(model, images)
    assert operators(graph) == left
    assert_close(found(graph, images), expected(model, images))


def test_moved_weights_are_folded():
    """Chainer turns the filters of a depthwise convolution round in each call, and slopes get the axes of an image."""
    model, images = trained(lambda: chainer.Sequential(L.DepthwiseConvolution2D(4, 2, 3), L.PReLU((8,))), 4, 8, 8)
    model[1].W.array[...] = np.linspace(0.1, 0.8, 8)
    graph = mixprec.export.onnx(model, images)
    assert operators(graph) == ["Conv", "PRelu"]
    assert_close(found(graph, images), expected(model, images))


class ReadTwice(chainer.Chain):
    """What is normalized is also an output."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3)
            self.bn = L.BatchNormalization(4)

    def forward(self, x):
        h = self.conv(x)
        return h, self.bn(h), h


def test_outputs_are_those_of_the_model_in_its_order():
    model, images = trained(ReadTwice, 3, 8, 8)
    graph = mixprec.export.onnx(model, images)
    assert [value.name for value in graph.graph.output] == ["output_0", "output_1", "output_2"]
    assert_close(found(graph, images), expected(model, images))


@pytest.mark.parametrize(("outsize", "pad", "dilate"), pairs([(7, 7), (8, 7), (8, 8)], [0, 1], [1, 2]))
def test_transposed_convolutions(outsize, pad, dilate):
    """Where the output is larger than the smallest possible one, Chainer adds at the ends."""
    outsize = [size + 2 * (dilate - 1) - 2 * pad for size in outsize]
    model, images = trained(
        lambda: L.Deconvolution2D(2, 3, 3, stride=2, pad=pad, outsize=outsize, dilate=dilate), 2, 3, 3
    )
    graph = mixprec.export.onnx(model, images)
    assert_close(found(graph, images), expected(model, images))


WINDOWS = [(2, 2, 0), (3, 2, 1), (3, 2, 0), ((3, 2), (2, 3), (1, 0)), (2, 3, 0)]


@pytest.mark.parametrize(
    ("window", "kind", "cover_all", "size"), first(4, pairs(WINDOWS, ["max", "average"], [True, False], [7, 8]))
)
def test_poolings(window, kind, cover_all, size):
    ksize, stride, pad = window
    if kind == "max":
        pool = lambda x: F.max_pooling_2d(x, ksize, stride, pad, cover_all=cover_all)  # noqa: E731
    else:  # the switch is of other borders
        pool = lambda x: F.average_pooling_nd(x, ksize, stride, pad, pad_value=0 if cover_all else None)  # noqa: E731
    model, images = trained(lambda: chainer.Sequential(L.Convolution2D(3, 4, 1), pool), 3, size, size)
    graph = mixprec.export.onnx(model, images)
    assert_close(found(graph, images), expected(model, images))


def _fail_from_nine(h):
    if len(h) == 9:
        raise ZeroDivisionError("nine")
    return h * 2


def _sent(h):
    return F.relu(h) * float(np.abs(h.array).max())  # equal for rows that are equal


BAD = {
    "a number that was read": (
        lambda: chainer.Sequential(L.Linear(4, 3), _sent),
        "MulConstant of / has a constant that depends on the batch",
    ),
    "a function without a trace": (
        lambda: chainer.Sequential(L.Linear(4, 3), F.ceil),
        "output 0 is made from an array: a function such as F.ceil is not in the graph",
    ),
    "a number that is not finite": (
        lambda: chainer.Sequential(L.Linear(4, 3, initialW=np.full((3, 4), np.nan, "f"))),
        "/0/W has numbers that are not finite",
    ),
    "a limit on the batch": (
        lambda: chainer.Sequential(L.Linear(4, 3), lambda h: h[: min(len(h), 6)]),
        "output of the graph differs from Chainer's by inf of its size on a batch of 9",
    ),
    "an error on large batches": (
        lambda: chainer.Sequential(L.Linear(4, 3), _fail_from_nine),
        "model or graph cannot be called on a batch of 9: ZeroDivisionError: nine",
    ),
    "more outputs on large batches": (
        lambda: chainer.Sequential(L.Linear(4, 3), lambda h: [h * 2] * (2 if len(h) < 5 else 3)),
        "the model returns 3 variables on 9 rows, 2 on 2",
    ),
    "channels that ONNX takes otherwise": (
        lambda: chainer.Sequential(
            lambda x: F.reshape(x, (-1, 4, 1, 1)), lambda x: F.local_response_normalization(x, 4)
        ),
        "LocalResponseNormalization of / cannot be exported: n is even",
    ),
    "a window behind the image": (
        lambda: chainer.Sequential(lambda x: F.reshape(x, (-1, 1, 2, 2)), lambda x: F.max_pooling_2d(x, 1, 3, pad=0)),
        r"MaxPooling\w+ of / cannot be exported: its last window lies beyond the image",
    ),
    "a padded batch": (
        lambda: chainer.Sequential(lambda x: F.pad(x, 1, "reflect")),
        "Pad of / cannot be exported: it pads the axis of the batch",
    ),
    "a layer without a shape": (lambda: L.Linear(None, 3), "/W has no shape yet: call the model on an example"),
    "no variable": (
        lambda: chainer.Sequential(L.Linear(4, 3), lambda h: h.array),
        "the model cannot be called on the example: TypeError: it returns no chainer.Variable",
    ),
    "a function without a converter": (
        lambda: chainer.Sequential(chainer.Sequential(L.Linear(4, 3), F.cumprod)),
        "Cumprod of /0 cannot be exported: no ONNX equivalent is known",
    ),
    "another shape": (
        lambda: L.Linear(5, 3),
        "the model cannot be called on the example: Linear takes 5 features, and was given 4",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_exported_is_one_line(what, tmp_path):
    build, message = BAD[what]
    np.random.seed(0)
    with pytest.raises(ExportError, match=f"^{message}") as caught:
        mixprec.export.onnx(build(), np.ones((1, 4), np.float32), tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# Functions whose converters in onnx_chainer leave something out, and others with odd arguments.
FUNCTIONS = {
    "normalize": lambda x: F.normalize(x * 0.01),
    "normalize, eps and axes": lambda x: F.normalize(x, eps=0.1, axis=(1, 2)),
    "pad": lambda x: F.pad(x, ((0, 0), (1, 0), (0, 2), (1, 1)), "constant", constant_values=1.5),
    "pad, edge": lambda x: F.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)), "edge"),
    "pad, reflect": lambda x: F.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)), "reflect"),
    "tile": lambda x: F.tile(x, (2, 1)),
    "tile, all axes": lambda x: F.tile(x, (1, 2, 1, 3)),
    "transpose": lambda x: F.transpose(x, (0, -1, 1, -2)),
    "softplus": lambda x: F.softplus(x, beta=3.0),
    "nearest": lambda x: F.resize_images(x, (7, 11), mode="nearest", align_corners=False),
    "bilinear": lambda x: F.resize_images(x, (7, 11)),
    "bilinear, no corners": lambda x: F.resize_images(x, (13, 3), align_corners=False),
    "unpooling": lambda x: F.unpooling_2d(x, 2),
    "unpooling, not all": lambda x: F.unpooling_2d(x, (2, 3), cover_all=False),
    "broadcast": lambda x: F.broadcast(F.mean(x, axis=1, keepdims=True), x)[0],
    "logarithm": lambda x: F.log(F.sigmoid(x)) + F.sqrt(F.exp(x)),
    "flip": lambda x: F.flip(x, 2),
    "cumsum": lambda x: F.cumsum(x, axis=2),
    "crelu": lambda x: F.crelu(x),
    "swish": lambda x: F.swish(x, np.linspace(0.5, 2, 4, dtype="f")),
    "prelu": lambda x: F.prelu(x, np.linspace(0.1, 0.7, 4, dtype="f")),
    "erf": lambda x: F.erf(x) + F.sum(x, axis=(2, 3), keepdims=True),
    "group normalization": lambda x: F.group_normalization(x, 2, np.ones(4, "f") * 2, np.ones(4, "f")),
    "newest axis": lambda x: x[:, None, ..., ::2, -3:-1],
    "the batch is moved": lambda x: F.transpose(F.transpose(x, (1, 2, 3, 0)) * 2, (3, 0, 1, 2)),
    "the batch is doubled": lambda x: F.concat([x, x * 2], axis=0),
    "reshape": lambda x: F.reshape(F.reshape(x, (len(x) * 2, -1)), (len(x), 2, -1)),
}


@pytest.mark.parametrize("name", first(14, FUNCTIONS))
def test_functions(name):
    model, images = trained(lambda: chainer.Sequential(L.Convolution2D(3, 4, 1), FUNCTIONS[name]), 3, 5, 6)
    graph = mixprec.export.onnx(model, images)
    for batch in BATCHES:
        rows = batch_of(images, batch)
        assert_close(found(graph, rows), expected(model, rows))


def test_inputs_may_be_outputs_and_integers():
    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.embed = L.EmbedID(7, 3)
                self.table = chainer.Parameter(np.ones((1, 3), "f"))

        def forward(self, ids, x):
            return {"y": F.sum(self.embed(ids), axis=1) + x, "x": x, "table": self.table, "again": x}

    np.random.seed(0)
    model, random = Net(), np.random.RandomState(1)
    ids, x = random.randint(0, 7, (4, 5)).astype("i"), random.normal(size=(4, 3)).astype("f")
    graph = mixprec.export.onnx(model, (ids, x), inputs=("ids", "x"))
    for batch in BATCHES:
        rows = random.randint(0, 7, (batch, 5)).astype("i"), random.normal(size=(batch, 3)).astype("f")
        assert_close(found(graph, *rows), expected(model, *map(chainer.Variable, rows)))


class Looked(chainer.Chain):
    """Numbers of the example that are computed without functions: rows of a table, and pixels as numbers."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.out = L.Linear(3, 2)
        self.table = np.random.RandomState(0).normal(size=(256, 3)).astype("f")

    def forward(self, x):
        return self.out(self.table[chainer.as_array(x)[:, 0]])


@pytest.mark.parametrize("example", [np.array([[3], [5]], "i"), np.zeros((1, 1), "B"), np.array([[200]], "B")])
def test_integers_that_are_read_are_no_constants(example):
    with pytest.raises(ExportError, match=r"LinearFunction of /out has a constant that depends on the batch"):
        mixprec.export.onnx(Looked(), example)


def test_one_integer_is_no_example():
    message = "^input 0 of the example holds one number only, 3; wanted: different numbers"
    with pytest.raises(ExportError, match=message):
        mixprec.export.onnx(L.EmbedID(7, 3), np.array([[3]], "i"))


@pytest.mark.parametrize("model", [None, F.relu, np.ones(3)])
def test_what_is_no_link(model):
    with pytest.raises(TypeError, match=r"^model must be a chainer\.Link"):
        mixprec.export.onnx(model, np.ones((1, 4), "f"))


class Remembers(chainer.Chain):
    """Links and states in lists of its own, which an export must not change."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.cell = L.Linear(4, 3), L.LSTM(3, 3)
        self.layers, self.states = [self.first, {"cell": (self.cell,)}], []

    def reset_state(self):
        self.states.clear()
        self.cell.reset_state()

    def forward(self, x):
        self.states.append(x)
        return self.layers[1]["cell"][0](self.layers[0](x))


@pytest.mark.parametrize("converted", [True, False])
def test_the_model_stays_as_it_is(converted):
    np.random.seed(0)
    model = Remembers()
    x = np.random.normal(size=(3, 4)).astype("f")
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam()).setup(model)
    if converted:
        mixprec.convert(model)
    optimizer.update(lambda: F.sum(model(x)))
    before = chainer.serializers.DictionarySerializer()
    before.save(optimizer)
    before.save(model)
    states, h, random = list(model.states), model.cell.h, np.random.get_state()[1].copy()
    graph = mixprec.export.onnx(model, x)
    after = chainer.serializers.DictionarySerializer()
    after.save(optimizer)
    after.save(model)
    assert before.target.keys() == after.target.keys()
    for name, array in before.target.items():
        np.testing.assert_array_equal(array, after.target[name])
    assert len(model.states) == len(states)
    assert model.cell.h is h
    np.testing.assert_array_equal(np.random.get_state()[1], random)
    rows = batch_of(x, 5)
    mixprec.revert(model)
    model.reset_state()
    assert_close(found(graph, rows), expected(model, rows))


def test_more_than_two_gigabytes_are_one_line(monkeypatch):
    monkeypatch.setattr(chainer_graph, "LARGEST", 1 << 20)
    with pytest.raises(ExportError, match=r"^the weights have more than 1 MiB, and an ONNX file has 2 GiB at most"):
        mixprec.export.onnx(L.Linear(512, 513), np.ones((1, 512), "f"))


@pytest.mark.parametrize("example", [np.float32(1), np.ones((0, 4), "f"), [[1.0, 2.0, 3.0, 4.0]], "images"])
def test_an_example_that_is_none(example):
    with pytest.raises(ExportError, match=r"^input 0 of the example is .*; wanted: an array with a row"):
        mixprec.export.onnx(L.Linear(4, 2), example)


def test_names_that_do_not_fit():
    with pytest.raises(ExportError, match=r"^2 names for 1 inputs or outputs: a, b"):
        mixprec.export.onnx(L.Linear(4, 2), np.ones((1, 4), "f"), inputs=("a", "b"))


def test_the_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    graph = mixprec.export.onnx(L.Linear(4, 2), np.ones((1, 4), "f"), path)
    assert onnx.load(path) == graph
    before = path.read_bytes()
    monkeypatch.setattr(onnx, "save_model", _fail)
    with pytest.raises(OSError, match="full"):
        mixprec.export.onnx(L.Linear(4, 2), np.ones((1, 4), "f"), path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]


def _fail(model, path):
    with contextlib.suppress(FileNotFoundError), open(path, "wb") as file:
        file.write(b"half")
    raise OSError("full")
