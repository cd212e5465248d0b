"""mixprec.export.placement: what is quantized, for TensorRT and for the CPU."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs onnx and onnxruntime: pip install -e '.[export]'")

from onnx import shape_inference

from mixprec.export.placement import Graph, place
from tests.export.graphs import GraphMaker, residual


def placed(model, target, half_ends=False):
    graph = Graph(shape_inference.infer_shapes(model, data_prop=True).graph)
    return place(graph, target, half_ends), graph


def kinds(names):
    return [name.rstrip("0123456789") for name in names]


def test_tensorrt_takes_layers_and_shortcuts():
    placement, graph = placed(residual(), "tensorrt")
    assert kinds(placement.nodes) == ["conv"] * 6 + ["gemm"]
    assert placement.nodes == placement.layers
    assert placement.left_out == placement.ends == ()
    # ReLU's output before the block whose shortcut is the identity; the convolution that is the shortcut of the other;
    # the input of the pooling.
    makers = [graph.maker[name] for name in placement.tensors]
    assert [node.op_type for node in makers] == ["Relu", "Conv", "Relu"]
    (attribute,) = [each for each in makers[1].attribute if each.name == "kernel_shape"]
    assert list(attribute.ints) == [1, 1]


def test_cpu_takes_what_is_between_too():
    placement, _ = placed(residual(), "cpu")
    between = [name for name in placement.nodes if name not in placement.layers]
    assert sorted(kinds(between)) == ["add"] * 2 + ["flatten", "globalaveragepool"] + ["relu"] * 5
    assert placement.tensors == ()


@pytest.mark.parametrize("target", ["tensorrt", "cpu"])
def test_ends_are_left_out_on_request(target):
    placement, _ = placed(residual(), target, half_ends=True)
    assert placement.ends == placement.left_out
    assert kinds(placement.ends) == ["conv", "gemm"]
    assert len(placement.layers) == 5


def test_only_layer_is_both_ends():
    make = GraphMaker(16, 8, 8)
    placement, _ = placed(make.model((make.conv("images", 16), 4)), "cpu", half_ends=True)
    assert len(placement.ends) == 1
    assert placement.layers == ()


def test_addition_of_two_rectified_branches_is_left_alone_in_tensorrt():
    make = GraphMaker(16, 8, 8)
    x, y = make.relu(make.conv("images", 16)), make.relu(make.conv("images", 16))
    placement, _ = placed(make.model((make.node("Add", x, y), 4)), "tensorrt")
    assert placement.tensors == ()


def test_branch_whose_convolution_has_other_takers_is_no_epilogue():
    make = GraphMaker(16, 8, 8)
    x = make.conv("images", 16)
    y = make.conv(x, 16)  # its output is one of the graph: it is computed for itself
    z = make.node("Add", y, x)
    placement, _ = placed(make.model((z, 4), (y, 4)), "tensorrt")
    assert placement.tensors == ()


LEFT_OUT = [
    *(((16, 16, 5, 5), 1, False, True), ((16, 3, 3, 3), 1, True, True), ((8, 3, 3, 3), 1, True, True)),
    *(((12, 3, 3, 3), 1, True, False), ((8, 8, 3, 3), 1, False, False), ((2, 64, 1, 1), 1, False, True)),
    *(((16, 3, 3, 1), 1, True, False), ((16, 1, 3, 3), 16, False, True), ((12, 1, 3, 3), 12, False, False)),
    ((32, 4, 1, 1), 8, False, False),
]


@pytest.mark.parametrize(("shape", "group", "first", "known"), LEFT_OUT)
def test_convolutions_without_a_kernel_in_tensorrt_are_left_out(shape, group, first, known):
    make = GraphMaker(shape[1] * group, 8, 8)
    x = "images" if first else make.relu("images")
    names = make.constant(np.zeros(shape, np.float32), "weights"), make.constant(np.zeros(shape[0], np.float32), "bias")
    y = make.node("Conv", x, *names, kernel_shape=shape[2:], group=group)
    model = make.model((y, 4))
    assert bool(placed(model, "tensorrt")[0].layers) == known
    assert bool(placed(model, "tensorrt")[0].left_out) != known
    assert placed(model, "cpu")[0].layers


BOUNDS = [((0, 6), True), ((-1, 1), True), ((None, 6), True), ((0, None), True), ((1, 6), False), ((-6, -1), False)]


@pytest.mark.parametrize(("bounds", "quantized"), BOUNDS)
def test_clip_is_quantized_only_around_zero(bounds, quantized):
    make = GraphMaker(16, 8, 8)
    names = ["" if bound is None else make.constant(np.float32(bound), f"bound{bound}") for bound in bounds]
    x = make.node("Clip", make.conv("images", 16), *names)
    placement, _ = placed(make.model((make.conv(x, 16), 4)), "cpu")
    assert ("clip" in kinds(placement.nodes)) == quantized


@pytest.mark.parametrize("values", [{"alpha": 2.0}, {"beta": 0.5}, {"transA": 1}])
def test_gemm_with_factors_is_left_out(values):
    make = GraphMaker(4)
    names = make.constant(np.ones((4, 4), np.float32), "weights"), make.constant(np.ones(4, np.float32), "bias")
    model = make.model((make.node("Gemm", "images", *names, **values), 2))
    assert kinds(placed(model, "cpu")[0].left_out) == ["gemm"]


def test_layers_whose_weights_are_computed_are_left_out():
    make = GraphMaker(16, 8, 8)
    weights = make.constant(np.ones((16, 16, 3, 3), np.float32), "weights")
    y = make.node("Conv", "images", make.node("Neg", weights))
    matrix = make.constant(np.ones((2, 6, 6), np.float32), "matrix")  # no matrix: which axis has the channels?
    z = make.node("MatMul", make.conv(y, 2), matrix)
    assert kinds(placed(make.model((z, 4)), "cpu")[0].left_out) == ["conv", "matmul"]


@pytest.mark.parametrize("target", ["tensorrt", "cpu"])
def test_groups_of_transposed_convolutions_are_left_out(target):
    make = GraphMaker(32, 8, 8)
    weights = make.constant(np.ones((32, 16, 3, 3), np.float32), "weights")
    model = make.model((make.node("ConvTranspose", "images", weights, group=2), 4))
    assert kinds(placed(model, target)[0].left_out) == ["convtranspose"]


def test_whole_numbers_between_layers_are_no_floats():
    make = GraphMaker(16, 8, 8)
    x = make.conv("images", 16)
    shape = make.node("Concat", make.node("Shape", x, end=1), make.constant(np.array([-1]), "rest"), axis=0)
    y = make.node("Reshape", x, shape)
    make.channels[y] = 16 * 64
    _, graph = placed(make.model((make.linear(y, 4), 2)), "cpu")
    assert shape not in graph.floats
    assert y in graph.floats
