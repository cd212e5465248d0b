"""mixprec.export.qdq: where Q/DQ nodes stand, and what weights, scales and zero points are."""

import json

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs onnx and onnxruntime: pip install -e '.[export]'")
pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime: pip install -e '.[export]'")

import onnx
import onnxruntime
from onnx import TensorProto

from mixprec.export.int8 import TARGETS, quantize
from tests.cases import first
from tests.export.graphs import GraphMaker, images, random_network, residual, shape_of
from tests.export.quantized import BOTH, CASES, LAYERS, NETWORKS, kinds, of_kind, quantized, run, tensors


def fake(values, scale, zero_point=0, lowest=-128, highest=127):
    """Values rounded to 8 bits, in float64 but for the division."""
    numbers = np.round(values / np.float32(scale)).astype(np.float64) + float(zero_point)
    return ((np.clip(numbers, lowest, highest) - float(zero_point)) * np.float64(scale)).astype(np.float32)


@CASES
def test_structure(name, target, half_ends):
    network, model, report = quantized(name, target, half_ends)
    onnx.checker.check_model(model, full_check=True)
    for field in ("metadata_props", "opset_import", "ir_version", "producer_name"):
        assert getattr(model, field) == getattr(network, field)
    for field in ("input", "output"):
        ours, theirs = getattr(model.graph, field), getattr(network.graph, field)
        assert [value.name for value in ours] == [value.name for value in theirs]
        assert [value.type.tensor_type.shape.dim[0].dim_param for value in ours] == ["N"] * len(ours)
    constants = tensors(model)
    assert not constants.keys() & {value.name for value in model.graph.input}
    assert constants.keys() == constants.keys() & {each for node in model.graph.node for each in node.input}
    makers = {name: node for node in model.graph.node for name in node.output}
    layers = of_kind(model, *LAYERS)
    assert [node.name for node in layers if node.name in report["left_out"]] == report["left_out"]
    for node in layers:
        source = makers.get(node.input[0])
        if node.name in report["left_out"]:
            if target == "tensorrt":
                assert source is None or source.op_type == "Cast"
            assert node.input[1] in constants
            continue
        assert source.op_type == "DequantizeLinear"
        assert makers[source.input[0]].op_type == "QuantizeLinear"
        dequantize = makers[node.input[1]]
        assert dequantize.op_type == "DequantizeLinear"
        if dequantize.input[0] in constants:  # or else it is the product of two activations
            assert constants[dequantize.input[0]].dtype == np.int8
            assert constants[dequantize.input[1]].ndim == 1
    assert report["quantized_layers"] == len(layers) - len(report["left_out"])
    assert len(report["left_out"]) == 2 * half_ends
    assert json.loads(json.dumps(report)) == report
    assert kinds(model)["Cast"] == (4 if half_ends and target == "tensorrt" else 0)


@CASES
def test_outputs_are_near_and_the_batch_is_free(name, target, half_ends):
    network, model, report = quantized(name, target, half_ends)
    assert report["errors"][report["method"]] < 0.03
    array = np.concatenate(images(8, *shape_of(network), seed=9))
    together = run(model, array, qdq_in_float=True)
    for found, wanted in zip(together, run(network, array), strict=True):
        assert found.dtype == np.float32
        assert np.square(found - wanted).mean() < 0.03 * wanted.var()
    for start, number in ((0, 1), (1, 2), (3, 5)):
        alone = run(model, array[start : start + number], qdq_in_float=True)
        for found, wanted in zip(alone, together, strict=True):
            np.testing.assert_allclose(found, wanted[start : start + number], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", first(12, range(40)))
def test_random_networks(seed, only_minmax):
    """A ReLU that is lost, or an input that is rounded twice, is a large error."""
    target, half_ends = TARGETS[seed % 2], seed % 4 > 1
    network = random_network(seed)
    model, _ = quantize(network, images(16, 16, 8, 8), target=target, half_ends=half_ends)
    array = np.concatenate(images(16, 16, 8, 8))
    computed = [run(model, array, qdq_in_float=True)] + [run(model, array)] * (target == "cpu")
    for outputs in computed:
        for found, wanted in zip(outputs, run(network, array), strict=True):
            assert np.square(found - wanted).mean() < 0.01 * max(np.square(wanted).mean(), 1e-6)


def test_layers_on_the_cpu_become_kernels_of_integers(tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    _, model, _ = quantized("residual", "cpu", False)
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = kinds(onnx.load(options.optimized_model_filepath))
    wanted = {"QLinearConv": 6, "QLinearAdd": 2, "QGemm": 1, "QLinearGlobalAveragePool": 1}
    assert {kind: found[kind] for kind in wanted} == wanted
    assert not found["DequantizeLinear"]


def test_tensorrt_gets_symmetric_int8_and_float_biases():
    for name in NETWORKS:
        _, model, _ = quantized(name, "tensorrt", False)
        constants = tensors(model)
        for node in of_kind(model, "QuantizeLinear", "DequantizeLinear"):
            zero_point, scale = constants[node.input[2]], constants[node.input[1]]
            assert zero_point.dtype == np.int8
            assert not zero_point.any()
            assert zero_point.shape == scale.shape
            assert (scale > 0).all()
        assert not {array.dtype.name for array in constants.values()} & {"int32", "uint8"}
        # Q/DQ stands before layers, shortcuts and poolings, and not behind a layer that is fused with what follows.
        makers = {each: node for node in model.graph.node for each in node.output}
        for node in of_kind(model, *LAYERS):
            bias = node.input[2] if len(node.input) > 2 else None
            assert bias not in makers


def test_residual_addition_has_one_rounded_input_in_tensorrt():
    _, model, _ = quantized("residual", "tensorrt", False)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    for node in of_kind(model, "Add"):
        assert sorted(makers[name] for name in node.input) == ["Conv", "DequantizeLinear"]
    assert kinds(model)["QuantizeLinear"] == 8  # inputs of 7 layers, of which two are the same, 1 shortcut, 1 pooling


@BOTH
def test_weights_have_a_scale_for_each_channel(target, vnni, only_minmax):
    vnni(True)
    network = residual()
    model, report = quantize(network, images(8, 3, 8, 8), target=target)
    assert not report["reduce_range"]
    old, new = tensors(network), tensors(model)
    assert sum(array.ndim > 1 for array in old.values()) == 7
    for name, weights in old.items():
        if weights.ndim > 1:
            scale = np.abs(weights).max(tuple(range(1, weights.ndim))) / 127
            np.testing.assert_allclose(new[f"{name}_scale"], scale, rtol=1e-6)
            wide = new[f"{name}_scale"].reshape(-1, *[1] * (weights.ndim - 1))
            np.testing.assert_array_equal(new[f"{name}_quantized"], np.round(weights / wide))
            assert new[f"{name}_quantized"].min() >= -127


def test_scales_in_tensorrt_do_not_depend_on_the_bias(only_minmax):
    """On the CPU they do: a bias in units of the scales must fit into int32."""
    make = GraphMaker(16)
    weights = np.full((16, 16), 1e-9, np.float32)
    network = make.model((make.linear("images", 16, weights=weights, bias=np.full(16, 9, np.float32)), 2))
    scales = {}
    for target in TARGETS:
        model, _ = quantize(network, images(8, 16), target=target)
        scales[target] = tensors(model)["weights0_scale"]
    np.testing.assert_allclose(scales["tensorrt"], 1e-9 / 127, rtol=1e-6)
    assert (scales["cpu"] > 2 * scales["tensorrt"]).all()


def test_transposed_convolutions_have_scales_of_the_second_axis():
    network, model, _ = quantized("unet", "tensorrt", False)
    (node,) = of_kind(network, "ConvTranspose")
    weights = tensors(network)[node.input[1]]
    scale = tensors(model)[f"{node.input[1]}_scale"]
    np.testing.assert_allclose(scale, np.abs(weights).max((0, 2, 3)) / 127, rtol=1e-6)


def test_weights_have_7_bits_without_vnni(vnni, only_minmax):
    vnni(False)
    network = residual()
    model, report = quantize(network, images(8, 3, 8, 8), target="cpu")
    assert report["reduce_range"]
    weights = [array for array in tensors(model).values() if array.dtype == np.int8 and array.ndim > 1]
    assert len(weights) == 7
    assert max(np.abs(array.astype(int)).max() for array in weights) == 64
    # TensorRT does not depend on the processor that writes the file.
    assert not quantize(network, images(8, 3, 8, 8), target="tensorrt")[1]["reduce_range"]


def test_fake_quantization_of_one_convolution(only_minmax):
    make = GraphMaker(3, 6, 6)
    weights = np.random.RandomState(1).normal(size=(16, 3, 1, 1)).astype(np.float32)
    bias = np.random.RandomState(2).normal(size=16).astype(np.float32)
    network = make.model((make.conv("images", 16, kernel=1, weights=weights, bias=bias), 4))
    batches = images(8, 3, 6, 6)
    model, report = quantize(network, batches, target="tensorrt")
    assert (report["calibration_images"], report["held_out_images"]) == (6, 2)
    constants = tensors(model)
    (node,) = of_kind(model, "QuantizeLinear")
    scale = constants[node.input[1]]
    calibration = np.delete(np.concatenate(batches), [3, 7], axis=0)
    assert scale == np.float32(np.abs(calibration).max() / 127)
    image = batches[0]
    rounded = fake(weights, (np.abs(weights).max((1, 2, 3), keepdims=True) / 127).astype(np.float32))
    wanted = np.einsum("kc,nchw->nkhw", rounded[:, :, 0, 0].astype(np.float64), fake(image, scale))
    wanted += bias[:, None, None]
    (found,) = run(model, image, qdq_in_float=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@BOTH
def test_ranges_are_the_extremes_of_what_layers_compute(target, only_minmax):
    network, batches = residual(), images(16, 3, 8, 8)
    model, report = quantize(network, batches, target=target)
    assert list(report["errors"]) == ["minmax"]
    chosen = np.concatenate([each[:3] for each in batches])
    wide = onnx.shape_inference.infer_shapes(network)
    names = [info.name for info in wide.graph.value_info]
    wide.graph.output.extend(wide.graph.value_info)
    values = dict(zip([value.name for value in wide.graph.output], run(wide, chosen, qdq_in_float=True), strict=True))
    values["images"] = chosen
    constants, checked = tensors(model), 0
    for name in ["images", *names]:
        if f"{name}_scale" not in constants:
            continue
        checked += 1
        lowest, highest = min(values[name].min(), 0), max(values[name].max(), 0)
        if target == "cpu":
            scale = (highest - lowest) / 255
            zero_point = np.round(-lowest / scale)
            assert constants[f"{name}_zero_point"].dtype == np.uint8
            assert abs(constants[f"{name}_zero_point"] - zero_point) <= 1
        else:
            scale = max(-lowest, highest) / 127
        np.testing.assert_allclose(constants[f"{name}_scale"], scale, rtol=1e-5)
    assert checked >= 8


def test_half_ends_are_float16():
    _, model, report = quantized("residual", "tensorrt", True)
    constants = tensors(model)
    inferred = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    nodes = {node.name: node for node in model.graph.node}
    for name in report["left_out"]:
        node = nodes[name]
        assert {constants[each].dtype.name for each in node.input[1:]} == {"float16"}
        assert inferred[node.input[0]] == inferred[node.output[0]] == TensorProto.FLOAT16
    assert sum(kind == TensorProto.FLOAT16 for kind in inferred.values()) == 4
