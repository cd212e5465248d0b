"""What all function nodes of mixprec do in Chainer's modes, graphs and hooks."""

import gc
import weakref

import chainer
import numpy as np
import pytest
from chainer import computational_graph, function_hooks, gradient_check

from mixprec import backends
from mixprec import functions as F
from mixprec.backends import primitives_of
from mixprec.backends.geometry import BatchNorm, Convolution, Pooling
from mixprec.backends.primitives import Primitives
from mixprec.backends.recurrence import Recurrence
from mixprec.functions import node
from mixprec.functions.batch_normalization import BatchNormalization
from mixprec.functions.concatenation import RowParts, Rows
from mixprec.functions.convolution import Convolution2D, ConvolutionImages
from mixprec.functions.joined_batch_normalization import BatchNormalizationMaxPooling2D, DualBatchNormalization
from mixprec.functions.layout import Dense
from mixprec.functions.linear import EmbedID
from mixprec.functions.node import Node
from mixprec.functions.recurrent import PackedSequences, Recurrent, UnpackedSequences
from mixprec.functions.relu import Addition
from mixprec.functions.resizing import ResizeImages, Unpooling2D, Upsampling2D
from mixprec.precision.policy import Policy
from mixprec.rewrite import replacements
from mixprec.rewrite.convert import Conversion
from mixprec.rewrite.scope import Scope, calling
from tests.functions.nhwc import DTYPES, channels_last, normal, run

IMAGES, VECTORS = (2, 5, 4, 8), (8,)
ONES = np.ones(8, np.float32)
MIXED = np.array([4, 0, 1]), np.array(0.7, np.float32)
OVERLAPPING, WHERE = Pooling((3, 3), (2, 2), (1, 1)), np.random.RandomState(0).randint(0, 9, IMAGES, np.uint8)


def _normalization(relu):
    return BatchNormalization(BatchNorm(relu=relu), None, None)


# name: (function of variables, shapes of the inputs; those of one axis are float32)
FUNCTIONS = {
    "convolution_2d": (F.convolution_2d, [IMAGES, (6, 8, 3, 3), (6,)]),
    "convolution_2d + relu": (lambda *xs: F.convolution_2d(*xs, relu=True), [IMAGES, (6, 8, 3, 3), (6,)]),
    "conv_images": (lambda x: ConvolutionImages(Convolution(), x.dtype).apply((x,))[0], [IMAGES]),
    "deconvolution_2d": (F.deconvolution_2d, [IMAGES, (8, 6, 3, 3), (6,)]),
    "batch_normalization": (F.batch_normalization, [IMAGES, VECTORS, VECTORS]),
    "batch_normalization + add + relu": (
        lambda x, g, b, a: F.batch_normalization(x, g, b, add=a, relu=True),
        [IMAGES, VECTORS, VECTORS, IMAGES],
    ),
    "dual_batch_normalization + relu": (
        lambda *xs: DualBatchNormalization(_normalization(True), _normalization(False)).apply(xs)[0],
        [IMAGES, VECTORS, VECTORS, IMAGES, VECTORS, VECTORS],
    ),
    "batch_normalization_max_pooling_2d": (
        lambda *xs: BatchNormalizationMaxPooling2D(_normalization(True), Pooling((3, 3), (2, 2))).apply(xs)[0],
        [IMAGES, VECTORS, VECTORS],
    ),
    "fixed_batch_normalization + relu": (
        lambda x, g, b: F.fixed_batch_normalization(x, g, b, ONES, ONES, relu=True),
        [IMAGES, VECTORS, VECTORS],
    ),
    "max_pooling_2d": (lambda x: F.max_pooling_2d(x, 2), [IMAGES]),
    "average_pooling_2d": (lambda x: F.average_pooling_2d(x, 2), [IMAGES]),
    "global_average_pooling_2d": (F.global_average_pooling_2d, [IMAGES]),
    "local_response_normalization": (lambda x: F.local_response_normalization(x, 3, 1, 0.5), [IMAGES]),
    "linear": (F.linear, [(3, 5), (4, 5), (4,)]),
    "embed_id": (lambda W: EmbedID(-1).apply((np.array([[2, -1], [2, 0]]), W))[0], [(3, 5)]),
    "relu": (F.relu, [(3, 5)]),
    "add": (lambda x, other: Addition().apply((x, other))[0], [IMAGES, IMAGES]),
    "softmax_cross_entropy": (lambda x: F.softmax_cross_entropy(x, np.array([1, 0, 4], np.int32)), [(3, 5)]),
    "softmax_cross_entropy + mixed": (lambda x: F.softmax_cross_entropy(x, np.array([1, 0, 4]), mixed=MIXED), [(3, 5)]),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, np.array([1, 0, 4]), mixed=MIXED), [(3, 5)]),
    "resize_images": (lambda x: ResizeImages((7, 3)).apply((x,))[0], [IMAGES]),
    "unpooling_2d": (lambda x: Unpooling2D((9, 8), Pooling((2, 2), (2, 2), (0, 0), True)).apply((x,))[0], [IMAGES]),
    "upsampling_2d": (lambda x: Upsampling2D((9, 7), OVERLAPPING, WHERE).apply((x,))[0], [IMAGES]),
    "concat": (lambda *xs: F.concat(xs), [IMAGES, IMAGES]),
    "dense": (lambda x: Dense().apply((x,))[0], [IMAGES]),
    "dropout": (F.dropout, [(3, 5)]),
    "recurrent": (
        lambda *xs: Recurrent(Recurrence("lstm", 2, (2, 1)), 4, (True, True), (1,) * 4).apply(xs)[0],
        [(3, 5), (2, 4), (2, 4), (16, 5), (16, 4), (16,), (16,)],
    ),
    "concat_rows": (lambda *xs: Rows().apply(xs)[0], [(2, 3), (4, 3)]),
    "split_rows": (lambda x: RowParts([2, 2, 6]).apply((x,))[2], [(6, 3)]),
    "pack_sequences": (lambda *xs: PackedSequences((1, 0)).apply(xs)[0], [(2, 3), (4, 3)]),
    "unpack_sequences": (lambda x: UnpackedSequences((1, 0), (2, 4)).apply((x,))[0], [(6, 3)]),
    "stochastic_depth": (lambda x: F.stochastic_depth(x, 0.5), [(3, 5)]),
    "to_nhwc": (F.to_nhwc, [IMAGES]),
    "to_nchw": (F.to_nchw, [IMAGES]),
    "cast": (lambda x: F.cast(x, "float16" if x.dtype != "float16" else "float32"), [(3, 5)]),
}
RANDOM = ("dropout", "stochastic_depth")
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def _case(name, dtype=np.float32):
    function, shapes = FUNCTIONS[name]
    arrays = [normal(seed, *shape, dtype=np.float32 if len(shape) == 1 else dtype) for seed, shape in enumerate(shapes)]
    return function, [channels_last(array) if array.shape[2:] == (3, 3) else array for array in arrays]


@every_function
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward_in_every_dtype(name, dtype):
    function, arrays = _case(name, dtype)
    y, gradients, _ = run(function, arrays)
    assert np.isfinite(y.astype(np.float64)).all()
    for array, gradient in zip(arrays, gradients, strict=True):
        assert gradient.dtype == array.dtype
        assert gradient.strides == array.strides


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in (*RANDOM, "cast")])
def test_gradients_are_numerical_derivatives(name):
    function, arrays = _case(name)
    y = function(*map(chainer.Variable, arrays))
    dy = None if y.ndim == 0 else normal(9, *y.shape)
    gradient_check.check_backward(function, tuple(arrays), dy, eps=2.0**-8, atol=2e-2, rtol=2e-2)


@every_function
def test_double_backprop_is_an_error_that_names_the_function(name):
    function, arrays = _case(name)
    variables = [chainer.Variable(array) for array in arrays]
    y = function(*variables)
    y.grad = np.ones_like(y.array)
    message = (
        r"^enable_double_backprop=True \(of chainer.grad or backward\) needs mixprec.convert\(model, layout='nchw'\) .*"
        rf"\(in YAML model.memory_format: nchw\), .*: {y.creator_node.name} of mixprec has no double backprop$"
    )
    with pytest.raises(RuntimeError, match=message):
        y.backward(enable_double_backprop=True)
    y = function(*variables)
    with pytest.raises(RuntimeError, match=message):
        chainer.grad([y], variables[:1], enable_double_backprop=True)
    (found,) = chainer.grad([function(*variables)], variables[:1])
    assert found.shape == arrays[0].shape


@every_function
def test_without_backprop_nothing_is_kept(name):
    function, arrays = _case(name)
    nodes = []

    class Hook(chainer.FunctionHook):
        name = "nodes"

        def forward_postprocess(self, function, in_data):
            nodes.append(weakref.ref(function))

    with chainer.no_backprop_mode(), Hook():
        y = function(*map(chainer.Variable, arrays))
    gc.collect()
    assert y.creator_node is None
    assert all(node() is None for node in nodes)
    assert len(nodes) == 1


@every_function
def test_nodes_are_labelled_in_graphs_and_timed_by_hooks(name):
    function, arrays = _case(name)
    hook = function_hooks.TimerHook()
    with hook:
        y = function(*map(chainer.Variable, arrays))
        y.grad = np.ones_like(y.array)
        y.backward()
    label = y.creator_node.label
    assert label.startswith(name.split(" ")[0])
    assert label in computational_graph.build_computational_graph([y]).dump()
    assert len(hook.call_history) == 2


@every_function
def test_a_policy_for_chainers_functions_leaves_these_alone(name):
    function, arrays = _case(name)
    expected, _, dy = run(function, arrays)
    replacements.install(chainer.Link)
    if name in RANDOM:
        return
    with calling(Scope(Conversion(Policy()))):
        found, gradients, _ = run(function, arrays, dy)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert [gradient.dtype for gradient in gradients] == [array.dtype for array in arrays]


def test_every_function_is_here():
    def names(cls):
        return {sub.name for sub in cls.__subclasses__() if sub.name}.union(*map(names, cls.__subclasses__()))

    assert names(Node) == {name.split(" ")[0] for name in FUNCTIONS}


def test_arguments_are_checked_once_for_shapes_dtypes_and_options(monkeypatch):
    checked, check = [], Convolution2D.check

    def noted(self, x, W):
        checked.append(x.shape)
        check(self, x, W)

    monkeypatch.setattr(Convolution2D, "check", noted)
    monkeypatch.setattr(node, "_checked", set())
    monkeypatch.setattr(node, "_MOST_CHECKED", 3)
    x, W = normal(0, *IMAGES), channels_last(normal(1, 6, 8, 3, 3))
    for _ in range(2):
        F.convolution_2d(x, W)
        assert checked == [IMAGES]
    for _ in range(2):
        F.convolution_2d(x, W, pad=1)
        assert len(checked) == 2
    for _ in range(2):
        F.convolution_2d(x.astype(np.float16), W.astype(np.float16))
        assert len(checked) == 3
    for number in (4, 5):
        with pytest.raises(ValueError, match="W"):
            F.convolution_2d(x, normal(2, 6, 8, 7, 7))  # an error is one each time
        assert len(checked) == number
    F.convolution_2d(x[:1], W)  # more than are remembered: all are forgotten
    F.convolution_2d(x, W)
    assert checked[5:] == [(1, *IMAGES[1:]), IMAGES]


class _Dense(type(primitives_of(ONES))):
    """Those of NumPy, on arrays that a device could take."""

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if not hasattr(Primitives, name):
            return method

        def call(*arguments, **keywords):
            nested = [*arguments, *keywords.values()]
            flat = [part for value in nested for part in (value if type(value) is tuple else (value,))]
            for array in flat:
                assert not isinstance(array, np.ndarray) or array.flags.c_contiguous, name
            return method(*arguments, **keywords)

        return call


@every_function
def test_primitives_get_contiguous_arrays_only(name, monkeypatch):
    function, arrays = _case(name)
    expected, expected_gradients, dy = run(function, arrays)
    monkeypatch.setattr(backends, "_on_numpy", _Dense)
    strided = [np.repeat(array, 2, axis=0)[::2] for array in arrays]
    if name not in RANDOM:
        found, gradients, _ = run(function, strided, dy)
        np.testing.assert_array_equal(found, expected)
        for gradient, other in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_array_equal(gradient, other)


def test_running_statistics_that_cannot_be_moved_in_place_are_an_error():
    strided = np.ones(16, np.float32)[::2]
    with pytest.raises(ValueError, match="batch_normalization: running_var is updated in place and must be contiguous"):
        F.batch_normalization(normal(0, *IMAGES), ONES, ONES, running_mean=ONES.copy(), running_var=strided)
