"""What lies between the layers of a model: elementwise functions, additions, concatenations, shapes; and fences.

Rules are those of :mod:`mixprec.rewrite.layer_rules`: functions of ``(scope, node, inputs)`` that return outputs, or
``None``.
"""

import chainer
from chainer.functions.activation.relu import ReLU
from chainer.functions.array.concat import Concat
from chainer.functions.array.reshape import Reshape
from chainer.functions.array.transpose import Transpose
from chainer.functions.math.basic_math import Add
from chainer.functions.util.forget import Forget

from mixprec.functions.addition import Addition
from mixprec.functions.concatenation import Concatenation
from mixprec.functions.relu import ReLU as OurReLU
from mixprec.rewrite import deferred, dtype_rules, fusion
from mixprec.rewrite.memory_order import (
    TO_NCHW,
    TO_NHWC,
    channels_first,
    in_storage_dtype,
    is_channels_last,
    is_dense,
    is_part,
    run,
    run_in_order_of,
)

# Elementwise functions of Chainer that run on views (N, H, W, C) of images: on CUDA their outputs lie in the order of
# their axes, those of operators too.
_ELEMENTWISE = {
    *("ClippedReLU", "ELU", "HardSigmoid", "LeakyReLU", "Sigmoid", "Softplus", "Tanh"),
    *("Absolute", "Div", "DivFromConstant", "PowConstVar", "PowVarConst", "PowVarVar"),
    *("Clip", "Erf", "Exp", "Expm1", "Log", "Log1p", "Maximum", "Minimum", "Sqrt", "Square"),
    *("AddConstant", "Mul", "MulConstant", "MultiAdd", "Neg", "Sub", "SubFromConstant"),
}


def _relu(scope, node, inputs):
    (x,) = inputs
    if fusion.can_relu(x):
        return (fusion.relu(scope, x),)
    if not (in_storage_dtype(x) and is_dense(x)):
        return None
    return (run_in_order_of(x, OurReLU(), x),)


def _add(scope, node, inputs):
    x, other = inputs
    if fusion.can_add(x, other):
        return (fusion.add(scope, x, other),)
    if fusion.can_add(other, x):
        return (fusion.add(scope, other, x),)
    for each in inputs:
        if deferred.is_waiting(each):
            deferred.compute(each, "it is added to another one, or broadcast")
    alike = x.ndim == other.ndim == 4 and x.shape == other.shape and in_storage_dtype(x, other)
    if alike and (is_channels_last(x) or is_channels_last(other)):
        inputs = _cast_alike(scope, [scope.images(each) for each in inputs])
        return (run(Addition(), *inputs),)
    return elementwise(scope, node, inputs) or dtype_rules.rule_of(Add)(scope, node, inputs)


def _cast_alike(scope, inputs):
    """Returns inputs in one storage dtype, float32 if they differ, as the rule for Chainer's addition has it."""
    return inputs if inputs[0].dtype == inputs[1].dtype else [scope.cast(x, "float32") for x in inputs]


def _concat(scope, node, inputs):
    if node.axis != 1 or not in_storage_dtype(*inputs) or len({x.dtype for x in inputs}) > 1:
        return None
    if not any(is_channels_last(x) or is_part(x) for x in inputs) or any(x.ndim != 4 for x in inputs):
        return None
    images = [x if is_part(x) else scope.images(x) for x in inputs]  # a concatenation copies anyway
    return (run(Concatenation(len(inputs)), *images),)


def _reshape(scope, node, inputs):
    (x,) = inputs
    if in_storage_dtype(x):
        x = channels_first(x)  # Chainer's would copy element by element
    return dtype_rules.rule_of(Reshape)(scope, node, (x,))


def _forget(scope, node, inputs):
    node.func = scope.joined(node.func)
    return dtype_rules.chainer_apply(node, inputs)


def elementwise(scope, node, inputs):
    """The rule for functions that compute each element alone; ``None`` if they are not applied to images in NHWC."""
    if not any(map(is_channels_last, inputs)) or not all(x.ndim == 4 or (x.size == 1 and x.ndim < 4) for x in inputs):
        return None
    if all(chainer.as_array(x).flags.c_contiguous for x in inputs):
        return None
    views = tuple(_view(x, TO_NHWC) if x.ndim == 4 else x for x in inputs)
    outputs = dtype_rules.rule_of(type(node))(scope, node, views)
    return tuple(_view(y, TO_NCHW) for y in outputs)


def _view(x, axes):
    return dtype_rules.chainer_apply(Transpose(axes), (x,))[0]


def fence(scope, node, inputs):
    """The rule for functions that are not Chainer's: float32, in the order of their axes, as they would have it."""
    return dtype_rules.chainer_apply(node, tuple(plain(scope, x) if in_storage_dtype(x) else x for x in inputs))


def plain(scope, x):
    """Returns a variable or array in float32, in the order of its axes."""
    return channels_first(x, "float32") if scope.nhwc else scope.cast(x, "float32")


def is_elementwise(cls):
    """Whether a class of Chainer's function nodes is one of :func:`elementwise`."""
    return cls.__name__ in _ELEMENTWISE


RULES = {Add: _add, Concat: _concat, ReLU: _relu, Reshape: _reshape}
RULES_IN_ANY_ORDER = {Forget: _forget}
TAKING_DEFERRED = (_add, _relu)
