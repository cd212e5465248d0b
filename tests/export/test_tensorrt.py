"""Engines that TensorRT builds of our files compute what onnxruntime does. No GPU has run this yet."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed: extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra export")

import mixprec.export
from mixprec.export.int8 import quantize
from mixprec.export.onnx_file import to_half
from mixprec.export.sessions import session
from models import MODELS
from tests.export.networks import trained

pytestmark = pytest.mark.gpu

BOUNDS = {"float32": 1e-3, "float16": 1e-2, "int8": 5e-2}  # of the largest logit; float32 may be TF32


def _engine(tensorrt, model, largest):
    """Builds an engine, strongly typed, for batches of 1 to ``largest``."""
    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    strongly = getattr(tensorrt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if strongly is None else 1 << int(strongly))
    parser = tensorrt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString()), [str(parser.get_error(i)) for i in range(parser.num_errors)]
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    given = network.get_input(0)
    shape = tuple(given.shape)[1:]
    profile.set_shape(given.name, (1, *shape), (largest, *shape), (largest, *shape))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    return tensorrt.Runtime(logger).deserialize_cuda_engine(plan)


def _run(cupy, engine, images):
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    context.set_input_shape(names[0], images.shape)
    arrays = [cupy.asarray(images), cupy.empty(tuple(context.get_tensor_shape(names[1])), np.float32)]
    for name, array in zip(names, arrays, strict=True):
        context.set_tensor_address(name, array.data.ptr)
    stream = cupy.cuda.get_current_stream()
    assert context.execute_async_v3(stream.ptr)
    stream.synchronize()
    return arrays[1].get()


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("arch", ["resnet8", "resnet50"])
def test_an_engine_computes_what_onnxruntime_does(arch, kind):
    tensorrt = pytest.importorskip("tensorrt", reason="TensorRT is not installed: pip install tensorrt-cu13")
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: extra cuda13")
    model, images = trained(lambda: MODELS[arch](10), 3, 64, 64, batch=16)
    graph = mixprec.export.onnx(model, images)
    if kind == "float16":
        graph = to_half(graph)
    elif kind == "int8":
        graph, _ = quantize(graph, [images[:8], images[8:]], target="tensorrt")
    engine = _engine(tensorrt, graph, 16)
    for batch in (1, 16):
        (expected,) = session(graph, qdq_in_float=True).run(None, {"input": images[:batch]})
        found = _run(cupy, engine, images[:batch])
        np.testing.assert_allclose(found, expected, rtol=0, atol=BOUNDS[kind] * np.abs(expected).max())
