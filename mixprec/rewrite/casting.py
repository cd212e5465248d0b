"""Dtypes of Chainer's own function nodes, while a converted model runs forward.

Each node that is applied looks up its rule by its class:

====================  ==============================================================================================
``compute``           convolutions, matrix products, embeddings: floating inputs are cast to the compute dtype
``float32``           losses, metrics, exponentials and sums: 16-bit inputs are cast to float32, and so is the result
``float32 inside``    normalizations, softmax: computed in float32, the result rounded to the dtype of the first input
``as it is``          batch norm mixes float16 activations and float32 parameters by itself; casts do what they say
``widest``            every other function of Chainer: 16-bit and float32 inputs meet in float32
====================  ==============================================================================================

The lists follow those of ``torch.autocast``. The casts are ordinary nodes of the graph, so that gradients come back in
the dtype of what they belong to. Chainer's functions know nothing of bfloat16: they compute in float32, and results are
rounded to bfloat16 where they would have been in bfloat16.
"""

import functools

from chainer import function_node

from mixprec.functions import checks
from mixprec.rewrite.memory_order import array_of

_COMPUTE = {
    "BilinearFunction",
    "Convolution2DFunction",
    "ConvolutionND",
    "Deconvolution2DFunction",
    "DeconvolutionND",
    "EmbedIDFunction",
    "LinearFunction",
    "LocalConvolution2DFunction",
    "MatMul",
    "SimplifiedDropconnect",
}
_FLOAT32 = {
    "CumProd",
    "CumSum",
    "Exp",
    "Expm1",
    "Log",
    "Log10",
    "Log1p",
    "Log2",
    "LogSoftmax",
    "LogSumExp",
    "Mean",
    "PowVarConst",
    "PowVarVar",
    "Prod",
    "Sum",
}
_FLOAT32_INSIDE = {
    "BatchRenormalizationFunction",
    "DecorrelatedBatchNormalization",
    "FixedDecorrelatedBatchNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "LocalResponseNormalization",
    "NormalizeL2",
    "PReLUFunction",
    "Softmax",
}
_AS_IT_IS = {"BatchNormalization", "Cast", "FixedBatchNormalization"}
_FLOAT32_PACKAGES = ("chainer.functions.loss.", "chainer.functions.evaluation.")

chainer_apply = function_node.FunctionNode.apply


@functools.cache
def rule_of(cls):
    """Returns the rule for a class of Chainer's function nodes: a function of ``(scope, node, inputs)``."""
    name = cls.__name__
    if name in _AS_IT_IS:
        return _as_it_is
    if name in _COMPUTE:
        return _in_compute
    if name in _FLOAT32 or cls.__module__.startswith(_FLOAT32_PACKAGES):
        return in_float32
    if name in _FLOAT32_INSIDE:
        return _float32_inside
    return _in_widest


def is_floating(x):
    """Whether a variable or array is in a dtype that rules may change."""
    return x.dtype in checks.STORAGE_DTYPES


def in_float32(scope, node, inputs):
    """Applies a node to inputs that are cast to float32."""
    return chainer_apply(node, _cast(scope, inputs, "float32"))


def _in_compute(scope, node, inputs):
    return _round_to_bfloat16(scope, node, _cast(scope, inputs, scope.compute))


def _float32_inside(scope, node, inputs):
    outputs = in_float32(scope, node, inputs)
    return tuple(scope.cast(y, inputs[0].dtype) if is_floating(y) else y for y in outputs)


def _in_widest(scope, node, inputs):
    if len({x.dtype for x in inputs if is_floating(x)}) > 1:
        inputs = _cast(scope, inputs, "float32")
    return _round_to_bfloat16(scope, node, inputs)


def _as_it_is(scope, node, inputs):
    if all(x.dtype != checks.BFLOAT16 for x in inputs):
        return chainer_apply(node, inputs)
    if hasattr(node, "type"):  # F.cast
        return (scope.cast(scope.cast(inputs[0], "float32"), node.type),)
    return _float32_inside(scope, node, inputs)


def _round_to_bfloat16(scope, node, inputs):
    """Applies a node; bfloat16 inputs and outputs are float32 for it."""
    if all(x.dtype != checks.BFLOAT16 for x in inputs):
        return chainer_apply(node, inputs)
    outputs = in_float32(scope, node, inputs)
    return tuple(scope.cast(y, checks.BFLOAT16) if array_of(y).dtype == "float32" else y for y in outputs)


def _cast(scope, inputs, dtype):
    return tuple(scope.cast(x, dtype) if is_floating(x) else x for x in inputs)
