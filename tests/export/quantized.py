"""INT8 models of small networks, and what is in them."""

import collections

import pytest
from onnx import numpy_helper

from mixprec.export.int8 import TARGETS, quantize
from mixprec.export.sessions import session
from tests.cases import pairs
from tests.export.graphs import chain, images, products, residual, shape_of, shared, unet

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
BOTH = pytest.mark.parametrize("target", TARGETS)
NETWORKS = {"chain": chain, "residual": residual, "unet": unet, "products": products, "shared": shared}
CASES = pytest.mark.parametrize(("name", "target", "half_ends"), pairs([*NETWORKS], TARGETS, (False, True)))
_made = {}


def quantized(name, target, half_ends):
    """(the network, its INT8 model, the report), made once."""
    key = name, target, half_ends
    if key not in _made:
        network = NETWORKS[name]()
        _made[key] = network, *quantize(network, images(16, *shape_of(network)), target=target, half_ends=half_ends)
    return _made[key]


def run(model, array, **how):
    computer = session(model, **how)
    return computer.run(None, {computer.get_inputs()[0].name: array})


def tensors(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def kinds(model):
    return collections.Counter(node.op_type for node in model.graph.node)


def of_kind(model, *kinds):
    return [node for node in model.graph.node if node.op_type in kinds]
