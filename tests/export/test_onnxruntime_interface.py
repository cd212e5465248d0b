"""What mixprec.export takes from inner modules of onnxruntime, which may change in any of its releases."""

import importlib
import inspect
import re

import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime: pip install -e '.[export]'")

# Module, name, and the arguments that mixprec/export/qdq.py and onnx_file.py give, or None.
TAKEN = [
    ("qdq_quantizer", "QDQQuantizer", "model per_channel reduce_range weight_qType activation_qType tensors_range "
     "nodes_to_quantize nodes_to_exclude op_types_to_quantize extra_options"),
    ("qdq_quantizer", "QDQQuantizer.quantize_activation_tensor", "tensor_name"),
    ("qdq_quantizer", "QDQQuantizer.quantize_model", ""),
    ("quant_utils", "add_infer_metadata", "model"),
    ("calibrate", "TensorData", None),
    ("onnx_model", "ONNXModel", "model"),
    ("onnx_model", "ONNXModel.topological_sort", ""),
    ("quant_utils", "QuantType.QInt8", None),
    ("quant_utils", "QuantType.QUInt8", None),
]  # fmt: skip
OPTIONS = (
    "ActivationSymmetric",
    "QuantizeBias",
    "QDQDisableWeightAdjustForInt32Bias",
    "OpTypesToExcludeOutputQuantization",
)
WHAT_TO_DO = (
    f"onnxruntime {onnxruntime.__version__} %s. mixprec/export/qdq.py needs it: adapt that file, and compare by "
    "`pytest tests/export`; until then lower its bound in setup.cfg."
)


@pytest.mark.parametrize(("module", "name", "arguments"), TAKEN)
def test_an_inner_module_has_what_is_taken_from_it(module, name, arguments):
    try:
        found = importlib.import_module(f"onnxruntime.quantization.{module}")
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        pytest.fail(WHAT_TO_DO % f"has no onnxruntime.quantization.{module}: {name} ({error})")
    if arguments is not None:
        there = inspect.signature(found).parameters
        missing = [each for each in arguments.split() if each not in there]
        required = [
            each.name
            for each in there.values()
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"
        ]
        unknown = [each for each in required if each not in arguments.split()]
        if missing or unknown:
            pytest.fail(WHAT_TO_DO % f"has other arguments of {name}: without {missing}, with {unknown}")


@pytest.mark.parametrize("option", OPTIONS)
def test_the_quantizer_reads_each_option(option):
    """An unknown option is ignored in silence: the name must be in the source."""
    folder = importlib.import_module("onnxruntime.quantization")
    names = ("qdq_quantizer", "base_quantizer")
    text = "".join(inspect.getsource(importlib.import_module(f"{folder.__name__}.{name}")) for name in names)
    if not re.search(rf'"{option}"', text):
        pytest.fail(WHAT_TO_DO % f"does not read the option {option} any more")
