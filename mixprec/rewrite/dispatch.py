"""Where functions are replaced: at the moment at which a function node is applied, while a converted model runs.

The model's source stays as it is, and whatever way it takes to its functions - links, functions, operators, aliases -
it comes by here, and only here.
"""

import functools

from chainer import function, function_node

from mixprec.rewrite import between_layers, deferred, dtype_rules, layer_rules
from mixprec.rewrite.active import current
from mixprec.rewrite.dtype_rules import chainer_apply

_OURS = "mixprec."


def install():
    """Makes every function node look for a converted model that runs when it is applied, once."""
    function_node.FunctionNode.apply = _apply
    for cls in _subclasses(function_node.FunctionNode):
        own = cls.__dict__.get("apply")
        if own is not None and cls.__module__.startswith("chainer.") and not hasattr(own, "looks_for_scope"):
            cls.apply = _unless_in_scope(own)


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
    scope = current()
    if scope is None:
        return chainer_apply(self, inputs)
    cls = type(self.function) if isinstance(self, function.FunctionAdapter) else type(self)
    rule, outputs = _rule(cls, scope.nhwc), None
    if rule is _ours:
        return chainer_apply(self, inputs)
    if rule not in between_layers.TAKING_DEFERRED:
        for x in inputs:
            if deferred.is_waiting(x):
                deferred.compute(x, f"{cls.__name__} follows")
    if rule is not None and (self._n_local_function_hooks == 0 or rule is between_layers.fence):
        outputs = rule(scope, self, inputs)
    if outputs is None:
        outputs = dtype_rules.rule_of(cls)(scope, self, inputs)
    if scope.watched:
        scope.watched.look(cls.__name__, inputs, outputs)
    if scope.trace is not None:
        scope.trace.note(scope, self, cls, inputs, outputs)
    return outputs


@functools.cache
def _rule(cls, nhwc):
    """Returns the rule for a class that comes before the one for dtypes, or ``None``."""
    if cls.__module__.startswith(_OURS):
        return _ours
    if not cls.__module__.startswith("chainer."):
        return between_layers.fence
    rule = between_layers.RULES_IN_ANY_ORDER.get(cls)
    if nhwc and rule is None:
        rule = layer_rules.RULES.get(cls) or between_layers.RULES.get(cls)
        if rule is None and between_layers.is_elementwise(cls):
            rule = between_layers.elementwise
    return rule


def _ours():
    """Stands for functions of mixprec, which come here only if hooks look at functions."""
