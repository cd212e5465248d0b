"""Dtypes of Chainer's own function nodes, while a converted model runs forward.

:func:`mixprec.rewrite.dispatch.apply` asks for a rule by the class of the node, if no other rule fits:

====================  ==============================================================================================
``compute``           floating inputs are cast to the compute dtype
``float32``           16-bit inputs are cast to float32, and so is the result
``float32 inside``    computed in float32, the result rounded to the dtype of the first input
``as it is``          inputs stay as they are
``widest``            16-bit and float32 inputs meet in float32
====================  ==============================================================================================

:mod:`mixprec.rewrite.dtype_table` is the table of classes. The casts are ordinary nodes of the graph, so that gradients
have the dtype of their inputs. Chainer's functions do not support bfloat16, and some refuse float16: they compute in
float32, and results are rounded to the dtype that they would have had.
"""

import functools

from chainer.functions.array.transpose import Transpose
from chainer.functions.normalization import batch_normalization
from chainer.utils import type_check

from mixprec.backends.geometry import pooling_of
from mixprec.base.announcements import announce
from mixprec.base.dtypes import BFLOAT16, FLOAT32, STORAGE_DTYPES
from mixprec.base.scoped import scoped
from mixprec.functions.node import chainer_apply
from mixprec.rewrite import dtype_table
from mixprec.rewrite.memory_order import TO_NCHW, TO_NHWC
from mixprec.rewrite.operands import name_lost_numbers

CHAINERS_OWN = batch_normalization._impl_selector
_refusing = set()  # classes that do not take float16


def on_views(scope, node, inputs):
    """Applies a node by the rule of its class to views (N, H, W, C) of its images; returns views (N, C, H, W)."""
    views = tuple(_view(x, TO_NHWC) if x.ndim == 4 else x for x in inputs)
    return tuple(_view(y, TO_NCHW) for y in rule_of(type(node))(scope, node, views))


def _view(x, axes):
    return chainer_apply(Transpose(axes), (x,))[0]


@functools.cache
def rule_of(cls):
    """Returns the rule for a class of Chainer's function nodes: a function of ``(scope, node, inputs)``."""
    for names, rule in _RULES:
        if cls.__name__ in names:
            return rule
    if cls.__module__.startswith(dtype_table.FLOAT32_PACKAGES):
        return in_float32
    unknown = "%s.%s is a function of Chainer that mixprec does not know: computed in the dtype of its inputs"
    announce(unknown, cls.__module__, cls.__name__)
    return _in_widest


def in_float32(scope, node, inputs):
    """Applies a node to inputs that are cast to float32."""
    return chainer_apply(node, _cast(scope, inputs, FLOAT32))


def _in_compute(scope, node, inputs):
    return _or_rounded(scope, node, _cast(scope, inputs, scope.compute))


def _float32_inside(scope, node, inputs):
    outputs = in_float32(scope, node, inputs)
    return tuple(scope.cast(y, inputs[0].dtype) if y.dtype in STORAGE_DTYPES else y for y in outputs)


def _in_widest(scope, node, inputs):
    arrays = inputs if getattr(node, "mask", None) is None else (*inputs, node.mask)  # a user's, for F.dropout
    if len({x.dtype for x in arrays if x.dtype in STORAGE_DTYPES}) > 1:
        inputs = _cast(scope, inputs, FLOAT32)
    return _or_rounded(scope, node, inputs)


def _float32_if_adding(scope, node, inputs):
    return (in_float32 if _adds(node) else _in_widest)(scope, node, inputs)


def _adds(node):
    if hasattr(node, "in_subs"):  # F.einsum
        return not set(node.in_subs) <= {*node.out_sub, ","}
    pooling = pooling_of(node)
    return any(step < size for step, size in zip(pooling.stride, pooling.window, strict=True))


def is_chainers_own(node):
    """Whether a function node is computed as Chainer does; a batch normalization may have another implementation."""
    return getattr(node, "_impl_selector", CHAINERS_OWN) is CHAINERS_OWN


def whose(node):
    """Returns the text of reports about a batch normalization that is not :func:`is_chainers_own`."""
    selector = node._impl_selector
    return f"it is computed by {getattr(selector, '__name__', type(selector).__name__)}"


def _as_it_is(scope, node, inputs):
    if not is_chainers_own(node):  # ChainerMN's squares its input in the dtype of the input
        on_example = scope.conversion.on_example  # it would wait for other processes, which may have no example
        with scoped(node, _impl_selector=CHAINERS_OWN if on_example else node._impl_selector):
            return _float32_inside(scope, node, inputs)
    if all(x.dtype != BFLOAT16 for x in inputs):
        return chainer_apply(node, inputs)
    if hasattr(node, "type"):  # F.cast
        x = scope.cast(inputs[0], FLOAT32)
        return (scope.cast(x, node.type),) if node.type in STORAGE_DTYPES else chainer_apply(node, (x,))
    return _float32_inside(scope, node, inputs)


def _or_rounded(scope, node, inputs):
    """Applies a node; if it refuses 16-bit inputs, in float32, and rounds the outputs to their dtype."""
    narrow = next((x.dtype for x in inputs if x.dtype in STORAGE_DTYPES and x.dtype != FLOAT32), None)
    if narrow is None:
        return chainer_apply(node, inputs)
    name_lost_numbers(node, narrow)
    if narrow != BFLOAT16 and type(node) not in _refusing:
        try:
            return chainer_apply(node, inputs)
        except type_check.InvalidType as error:
            try:
                wide = in_float32(scope, node, inputs)
            except type_check.InvalidType:  # dtypes are not the reason
                raise error from None
            _refusing.add(type(node))
    else:
        wide = in_float32(scope, node, inputs)
    return tuple(scope.cast(y, narrow) if y.dtype == FLOAT32 else y for y in wide)


def _cast(scope, inputs, dtype):
    return tuple(scope.cast(x, dtype) if x.dtype in STORAGE_DTYPES else x for x in inputs)


_RULES = (
    (dtype_table.COMPUTE, _in_compute),
    (dtype_table.FLOAT32, in_float32),
    (dtype_table.FLOAT32_INSIDE, _float32_inside),
    (dtype_table.FLOAT32_IF_ADDING, _float32_if_adding),
    (dtype_table.AS_IT_IS, _as_it_is),
    (dtype_table.ELEMENTWISE | dtype_table.MOVING | dtype_table.BACKWARD | dtype_table.OTHERS, _in_widest),
)
