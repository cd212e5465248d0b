"""Chainer's functions that are computed as a whole: as plain Chainer does, in float32.

These are losses that are made of several nodes, and the average with weights (:mod:`mixprec.compat.whole`). Node by
node the products in them would be float16, and inf before they are added up.
"""

from mixprec.compat import whole
from mixprec.rewrite import deferred
from mixprec.rewrite.active import current, entering
from mixprec.rewrite.between_layers import plain
from mixprec.rewrite.memory_order import in_storage_dtype


def install():
    """Makes Chainer's functions of this kind look for a converted model that runs."""
    whole.compute_by(_compute)


def _compute(function, args, kwargs):
    scope = current()
    if scope is None:
        return function(*args, **kwargs)
    inputs = {}  # id -> (variable, what plain Chainer gets of it)
    args = [_plain(scope, function.__name__, each, inputs) for each in args]
    kwargs = {name: _plain(scope, function.__name__, each, inputs) for name, each in kwargs.items()}
    with entering(None):
        outputs = function(*args, **kwargs)
    if scope.watched:
        scope.watched.look(function.__name__, [x for x, _ in inputs.values()], ())
    if scope.trace is not None:
        scope.trace.claim(function.__name__)
    return outputs


def _plain(scope, name, x, inputs):
    if isinstance(x, (list, tuple)):
        parts = [_plain(scope, name, each, inputs) for each in x]
        return type(x)._make(parts) if hasattr(x, "_make") else type(x)(parts)
    if not hasattr(x, "dtype") or not in_storage_dtype(x):
        return x
    if id(x) not in inputs:  # the same one given twice is converted once
        if deferred.is_waiting(x):
            deferred.compute(x, f"{name} follows")
        inputs[id(x)] = x, plain(scope, x)
    return inputs[id(x)][1]
