"""The rule that computes a function, while a converted model runs.

:mod:`mixprec.rewrite.replacements` calls :func:`apply` for each function node of Chainer. The model's source stays as
it is, and whatever way it takes to its functions - links, functions, operators, aliases - it comes by here.
"""

import functools

from chainer import function

from mixprec.dtypes import STORAGE_DTYPES
from mixprec.rewrite import between_layers, dtype_rules, layer_rules
from mixprec.rewrite.deferred import Deferred, taken
from mixprec.rewrite.dtype_rules import chainer_apply
from mixprec.rewrite.scope import active
from mixprec.weight_copies import as_computed

_OURS = "mixprec."


def apply(scope, node, inputs):
    """Computes a function.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope` of the call that is under way.
        node: the function node, which has not been applied.
        inputs: variables and arrays.

    Returns:
        tuple of variables.
    """
    cls = type(node.function) if isinstance(node, function.FunctionAdapter) else type(node)
    rule, outputs = _rule(cls, scope.nhwc), None
    if rule not in layer_rules.TAKING_FILTERS and cls.__name__ != "Cast":
        inputs = as_computed(scope, inputs)
    if rule is _ours:
        return chainer_apply(node, inputs)
    for x in inputs:
        if type(x) is not Deferred or rule not in layer_rules.TAKING_DEFERRED:
            _take(scope, x, cls.__name__)
    if rule is not None and (node._n_local_function_hooks == 0 or rule is between_layers.fence):
        outputs = rule(scope, node, inputs)
    if outputs is None:
        outputs = dtype_rules.rule_of(cls)(scope, node, inputs)
    if scope.trace is not None:
        scope.trace.note(scope, node, cls, inputs, outputs)
    return outputs


def _take(scope, x, name):
    """Notes that a function of this name takes ``x``: a deferred variable is computed for it."""
    if type(x) is Deferred:
        taken(x, name)
    elif id(x) in scope.unfused:
        scope.unfused[id(x)].is_taken(x, name)


@functools.cache
def _rule(cls, nhwc):
    """Returns the rule for a class that comes before the one for dtypes, or ``None``."""
    if cls.__module__.startswith(_OURS):
        return layer_rules.RULES.get(cls, _ours) if nhwc else _ours
    if not cls.__module__.startswith("chainer."):
        return between_layers.fence
    rule = between_layers.RULES_IN_ANY_ORDER.get(cls)
    if nhwc and rule is None:
        rule = layer_rules.RULES.get(cls) or between_layers.RULES.get(cls)
        if rule is None and between_layers.is_elementwise(cls):
            rule = between_layers.elementwise
    return rule


def _ours():
    """Stands for functions of mixprec without a rule, which come here only if function hooks are registered."""


def compute_whole(function, args, kwargs):
    """Computes a function of Chainer that is made of several nodes as plain Chainer does, in float32.

    These are losses, and the average with weights (:mod:`mixprec.compat.whole`). Node by node the products in them
    would be float16, and inf before they are added up.

    Args:
        function: the function.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    scope = active.scope
    if scope is None:
        return function(*args, **kwargs)
    inputs = {}  # id -> (variable, what plain Chainer gets of it)
    args = [_plain(scope, function.__name__, each, inputs) for each in args]
    kwargs = {name: _plain(scope, function.__name__, each, inputs) for name, each in kwargs.items()}
    active.scope = None
    try:
        outputs = function(*args, **kwargs)
    finally:
        active.scope = scope
    if scope.trace is not None:
        scope.trace.claim(function.__name__)
    return outputs


def _plain(scope, name, x, inputs):
    if isinstance(x, (list, tuple)):
        parts = [_plain(scope, name, each, inputs) for each in x]
        return type(x)._make(parts) if hasattr(x, "_make") else type(x)(parts)
    if not hasattr(x, "dtype") or x.dtype not in STORAGE_DTYPES:
        return x
    if id(x) not in inputs:  # the same one given twice is converted once
        _take(scope, x, name)
        inputs[id(x)] = x, scope.plain(x)
    return inputs[id(x)][1]
