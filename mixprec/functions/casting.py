"""Casts at the entrance of Chainer's function nodes, while a converted model runs forward.

Inside :func:`scope` every node that is applied looks up its rule by its class:

====================  ==============================================================================================
``compute``           convolutions, matrix products, embeddings: floating inputs are cast to the compute dtype
``float32``           losses, metrics, exponentials and sums: float16 inputs are cast to float32, and so is the result
``float32 inside``    normalizations, softmax: computed in float32, the result rounded to the dtype of the first input
``as it is``          batch norm mixes float16 activations and float32 parameters by itself; casts do what they say
``widest``            every other function of Chainer: float16 and float32 inputs meet in float32
====================  ==============================================================================================

The lists follow those of ``torch.autocast``. A node class that is not Chainer's own gets its inputs untouched. The
casts are ordinary nodes of the graph, so that gradients come back in the dtype of what they belong to.
"""

import contextlib
import functools
import threading

import chainer
import chainer.functions as F
from chainer import function, function_node

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

_active = threading.local()
_chainer_apply = function_node.FunctionNode.apply


@contextlib.contextmanager
def scope(policy):
    """Applies ``policy`` (:class:`mixprec.policy.Policy`) to the nodes this thread applies inside the block."""
    outer = current()
    _active.policy = policy
    try:
        yield
    finally:
        _active.policy = outer


def current():
    """The policy of the innermost :func:`scope`, or ``None``."""
    return getattr(_active, "policy", None)


def install():
    """Makes every function node look for a :func:`scope` when it is applied, once."""
    function_node.FunctionNode.apply = _apply
    for cls in _subclasses(function_node.FunctionNode):
        own = cls.__dict__.get("apply")
        if own is not None and cls.__module__.startswith("chainer.") and not hasattr(own, "looks_for_scope"):
            cls.apply = _unless_in_scope(own)


def cast(variable, dtype):
    """Casts a float16 or float32 variable or array to ``dtype``; anything else is returned as it is."""
    if _is_half_or_single(variable) and variable.dtype != dtype:
        return F.cast(variable, dtype)
    return variable


def _subclasses(cls):
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _unless_in_scope(apply):
    # mixprec.compat mends some losses in float16 by an `apply` of their own; in a scope they are in float32 anyway.
    @functools.wraps(apply)
    def run(self, inputs):
        return apply(self, inputs) if current() is None else _apply(self, inputs)

    run.looks_for_scope = True
    return run


def _apply(self, inputs):
    policy = current()
    rule = None if policy is None else _rule(_class_of(self))
    if rule is None:
        return _chainer_apply(self, inputs)
    return rule(self, inputs, policy)


def _class_of(node):
    return type(node.function) if isinstance(node, function.FunctionAdapter) else type(node)


@functools.cache
def _rule(cls):
    name, module = cls.__name__, cls.__module__
    if not module.startswith("chainer.") or name in _AS_IT_IS:
        return None
    if name in _COMPUTE:
        return _in_compute
    if name in _FLOAT32 or module.startswith(_FLOAT32_PACKAGES):
        return _in_float32
    if name in _FLOAT32_INSIDE:
        return _float32_inside
    return _in_widest


def _in_compute(node, inputs, policy):
    return _chainer_apply(node, tuple(cast(x, policy.compute) for x in inputs))


def _in_float32(node, inputs, policy):
    return _chainer_apply(node, tuple(cast(x, "float32") for x in inputs))


def _float32_inside(node, inputs, policy):
    outputs = _in_float32(node, inputs, policy)
    return tuple(cast(y, inputs[0].dtype) for y in outputs)


def _in_widest(node, inputs, policy):
    if len({x.dtype for x in inputs if _is_half_or_single(x)}) > 1:
        inputs = tuple(cast(x, "float32") for x in inputs)
    return _chainer_apply(node, inputs)


def _is_half_or_single(x):
    return isinstance(x, (chainer.Variable, *chainer.get_array_types())) and x.dtype in ("float16", "float32")
