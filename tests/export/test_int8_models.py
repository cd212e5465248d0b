"""INT8 of models that were exported."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs onnx and onnxruntime: pip install -e '.[export]'")
pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime: pip install -e '.[export]'")

import onnx

import mixprec.export
from mixprec.export.int8 import quantize
from tests.export.graphs import images
from tests.export.networks import Everything, trained
from tests.export.quantized import BOTH, run
from tests.zoo.models import CASES as CHAINER

ZOO = ("attention_of_pixels", "group_normalization", "shufflenet")


def exported(name):
    """(a Chainer model as a graph, batches of images)."""
    if name == "everything":
        model, array = trained(Everything, 3, 16, 16)
    else:
        np.random.seed(0)
        case = CHAINER[name]
        model, inputs = case.build(), case.inputs(np.random.RandomState(0))
        model = getattr(model, "predictor", model)
        array = inputs[0] if isinstance(inputs, tuple) else inputs
        model(array)
    return mixprec.export.onnx(model, array), images(16, *array.shape[1:])


@BOTH
@pytest.mark.parametrize("name", ["everything", *(pytest.param(name, marks=pytest.mark.slow) for name in ZOO)])
def test_exported_models(name, target, only_minmax):
    network, batches = exported(name)
    model, _ = quantize(network, batches, target=target)
    onnx.checker.check_model(model, full_check=True)
    array = np.concatenate(batches)
    for found, wanted in zip(run(model, array, qdq_in_float=True), run(network, array), strict=True):
        assert np.square(found - wanted).mean() < 0.02 * np.square(wanted).mean()
