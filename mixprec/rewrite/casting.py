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
the dtype of what they belong to. Chainer's functions know nothing of bfloat16, and some refuse float16: they compute in
float32, and results are rounded to where they would have been.
"""

import functools

from chainer import function_node
from chainer.utils import type_check

from mixprec.functions import checks
from mixprec.rewrite.memory_order import in_storage_dtype

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

_refusing = set()  # classes that do not take float16

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


def in_float32(scope, node, inputs):
    """Applies a node to inputs that are cast to float32."""
    return chainer_apply(node, _cast(scope, inputs, "float32"))


def _in_compute(scope, node, inputs):
    return _or_rounded(scope, node, _cast(scope, inputs, scope.compute))


def _float32_inside(scope, node, inputs):
    outputs = in_float32(scope, node, inputs)
    return tuple(scope.cast(y, inputs[0].dtype) if in_storage_dtype(y) else y for y in outputs)


def _in_widest(scope, node, inputs):
    if len({x.dtype for x in inputs if in_storage_dtype(x)}) > 1:
        inputs = _cast(scope, inputs, "float32")
    return _or_rounded(scope, node, inputs)


def _as_it_is(scope, node, inputs):
    if all(x.dtype != checks.BFLOAT16 for x in inputs):
        return chainer_apply(node, inputs)
    if hasattr(node, "type"):  # F.cast
        x = scope.cast(inputs[0], "float32")
        return (scope.cast(x, node.type),) if node.type in checks.STORAGE_DTYPES else chainer_apply(node, (x,))
    return _float32_inside(scope, node, inputs)


def _or_rounded(scope, node, inputs):
    """Applies a node; if it refuses 16-bit inputs, in float32, and rounds the outputs to their dtype."""
    narrow = next((x.dtype for x in inputs if in_storage_dtype(x) and x.dtype != "float32"), None)
    if narrow is None:
        return chainer_apply(node, inputs)
    if narrow != checks.BFLOAT16 and type(node) not in _refusing:
        try:
            return chainer_apply(node, inputs)
        except type_check.InvalidType:
            wide = in_float32(scope, node, inputs)  # raises again, if dtypes are not what is wrong
            _refusing.add(type(node))
    else:
        wide = in_float32(scope, node, inputs)
    return tuple(scope.cast(y, narrow) if y.dtype == "float32" else y for y in wide)


def _cast(scope, inputs, dtype):
    return tuple(scope.cast(x, dtype) if in_storage_dtype(x) else x for x in inputs)
