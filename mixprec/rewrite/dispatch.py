"""Dispatch in a converted model: a call of it opens a scope, and a rule computes each of its functions.

``convert`` replaces Chainer's methods by :func:`call` and :func:`apply`. The model's source stays as it is. Links,
functions, operators and aliases all come through here.
"""

import functools

import chainer
import numpy as np
from chainer import function
from chainer.functions.array.cast import Cast

from mixprec.base.dtypes import FLOAT32, STORAGE_DTYPES
from mixprec.base.scoped import scoped
from mixprec.compat.registry import patch
from mixprec.functions import checks
from mixprec.functions.node import chainer_apply
from mixprec.precision.conversion_state import active
from mixprec.precision.weight_copies import COMPUTE, as_computed
from mixprec.precision.without_masters import CONVERSION
from mixprec.rewrite import between_layers, dtype_rules, float32_links, layer_rules, sizes
from mixprec.rewrite.deferred import Deferred, taken
from mixprec.rewrite.example import explain, fault
from mixprec.rewrite.memory_order import in_storage_dtype
from mixprec.rewrite.outside import COMPUTED, is_backward, widened
from mixprec.rewrite.results import outwards
from mixprec.rewrite.scope import Scope, calling
from mixprec.rewrite.trace import TRACED_CALLS, Trace

_FLOAT64 = np.dtype(np.float64)
_OURS = "mixprec."


@patch("*:*.__call__", when="mixprec.convert")
def call(original):
    """Without it links of converted models run as plain ones: this is ``chainer.Link.__call__``, or a class's own.

    The outermost converted link runs under a scope, the others tell it where the model is.
    """

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        state = self.__dict__.get(CONVERSION)
        if state is None:
            return original(self, *args, **kwargs)
        scope = active.scope
        if scope is None or scope.conversion is not state.conversion:
            return call_from_outside(state, functools.partial(original, self), args, kwargs)
        outer, scope.link, scope.has_called = scope.link, state, True
        try:
            if state.keeps_float32:
                return float32_links.call(scope, functools.partial(original, self), args, kwargs)
            return original(self, *args, **kwargs)
        finally:
            scope.link = outer

    return call


def call_from_outside(state, function, args, kwargs):
    """Calls a converted link that no other link of its conversion has called.

    Args:
        state: :class:`~mixprec.rewrite.convert.LinkState` of the link.
        function: what Chainer calls.
        args: positional arguments.
        kwargs: keyword arguments.

    Returns:
        the link's result, with its variables in float32 and in the order of their axes.
    """
    conversion, config = state.conversion, chainer.config
    traced = conversion.traced < TRACED_CALLS and config.train and config.enable_backprop
    scope = Scope(conversion, state, Trace(conversion.on_example) if traced else None)
    with calling(scope):
        # Held until the end: a result counts as kept.
        try:
            inside = (
                float32_links.call(scope, function, args, kwargs) if state.keeps_float32 else function(*args, **kwargs)
            )
        except Exception as error:
            why = "" if conversion.on_example else fault(error)  # convert itself says more about its example
            if why:
                explain(error, why)
            raise
        if isinstance(inside, chainer.Variable):
            result = scope.leaf(inside)
            variables = [result]
        else:
            result, variables = outwards(inside, scope)
    if traced:
        scope.trace.finish(conversion, [*args, *kwargs.values()], variables)
    return result


# mixprec.compat mends some losses in float16 by an `apply` of their own, which converted models do without.
@patch(
    "chainer.function_node:FunctionNode.apply",
    "chainer.functions.loss.mean_squared_error:MeanSquaredError.apply",
    "chainer.functions.loss.triplet:Triplet.apply",
    "chainer.functions.loss.contrastive:Contrastive.apply",
    when="mixprec.convert",
)
def apply(original):
    """Without it functions of converted models are not replaced: every function passes by here.

    While a converted model runs, a rule is applied. At other times what is its own takes part in float32.
    """

    @functools.wraps(original)
    def apply(self, inputs):
        scope = active.scope
        if scope is None:
            return original(self, widened(self, inputs))
        try:
            outputs = _computed(scope, self, inputs)
        except AttributeError:
            for index, x in enumerate(inputs):  # such as labels in a list, which have no dtype
                checks.array(type(self).__name__, f"input {index}", x)
            raise
        # Not gradients, which a backward pass in a call computes: sums of them stay in the compute dtype.
        if active.backward is None or not is_backward():
            for y in outputs:
                y.__dict__[COMPUTED] = True  # setattr would compute what is deferred
        return outputs

    return apply


def _computed(scope, node, inputs):
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
    for x in inputs:  # a loop, as every function of a step comes through here
        if type(x) is Deferred:  # which is in a storage dtype
            continue
        if COMPUTE in x.__dict__ and x.dtype == FLOAT32 if isinstance(x, chainer.Parameter) else x.dtype == _FLOAT64:
            inputs = _narrowed(scope, rule, cls, inputs)
            break
    if rule is _ours:
        return chainer_apply(node, inputs)
    if scope.keeps_float32 and cls is not Cast:
        inputs = float32_links.widened(scope, inputs, cls.__name__)  # variables that the link has from elsewhere
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


def _narrowed(scope, rule, cls, inputs):
    """Returns inputs, some of which are parameters of copies in FP32, or in float64, as the rule takes them."""
    if rule not in layer_rules.TAKING_FILTERS and cls.__name__ != "Cast":  # ours or Chainer's
        inputs = as_computed(scope, inputs)
    return inputs if rule is _ours or rule is between_layers.fence else _without_float64(scope, inputs)


def _without_float64(scope, inputs):
    """Returns inputs, float64 ones in float32 if there are narrower ones: plain Chainer would refuse both.

    NumPy makes float64 where the model does not ask for it. Where all is float64, and parameters are, it is meant.
    """
    if not any(map(in_storage_dtype, inputs)):
        return inputs
    meant = [x.dtype != _FLOAT64 or isinstance(x, chainer.Parameter) for x in inputs]
    return tuple(x if as_it_is else scope.from_float64(x) for x, as_it_is in zip(inputs, meant, strict=True))


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
        rule = layer_rules.RULES.get(cls) or between_layers.RULES.get(cls) or sizes.RULES.get(cls)
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
    given = [*_flat((*args, *kwargs.values()))]
    args, kwargs = plain_arguments(scope, function.__name__, args, kwargs)
    with scoped(active, scope=None):
        outputs = function(*args, **kwargs)
    if scope.trace is not None:
        scope.trace.note_whole(function.__name__, given)
    return outputs


def plain_arguments(scope, function, args, kwargs):
    """Returns arguments with variables and arrays as plain Chainer would have them, also in lists and tuples.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        function: name of what takes them.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    known = {}  # id -> (variable, what plain Chainer gets of it)
    given = [*_flat((*args, *kwargs.values()))]
    if any(x.dtype in STORAGE_DTYPES for x in given):
        wide = (x for x in given if x.dtype == _FLOAT64 and not isinstance(x, chainer.Parameter))
        known.update((id(x), (x, scope.from_float64(x))) for x in wide)
    args = [_plain(scope, function, each, known) for each in args]
    return args, {name: _plain(scope, function, each, known) for name, each in kwargs.items()}


def _flat(x):
    if isinstance(x, (list, tuple)):
        for each in x:
            yield from _flat(each)
    elif hasattr(x, "dtype"):
        yield x


def _plain(scope, name, x, known):
    if isinstance(x, (list, tuple)):
        parts = [_plain(scope, name, each, known) for each in x]
        return type(x)._make(parts) if hasattr(x, "_make") else type(x)(parts)
    if id(x) in known:  # the same one given twice is converted once
        return known[id(x)][1]
    if not hasattr(x, "dtype") or x.dtype not in STORAGE_DTYPES:
        return x
    _take(scope, x, name)
    known[id(x)] = x, scope.plain(x)
    return known[id(x)][1]
