"""Calls of converted links: the outermost one runs under a scope, the others say where the model is."""

import copy
import functools

import chainer

from mixprec.dtypes import is_half
from mixprec.rewrite.active import current
from mixprec.rewrite.memory_order import channels_first, in_storage_dtype
from mixprec.rewrite.scope import Scope, calling
from mixprec.rewrite.state import state_of
from mixprec.rewrite.trace import tracing


def install(cls):
    """Makes calls of links of a class look whether the link is converted.

    The ``__call__`` that the class inherits, usually :meth:`chainer.Link.__call__`, is wrapped where it is defined:
    replacing the class of each link instead would change what users see of their model and what pickle finds.
    """
    owner = next(base for base in cls.__mro__ if "__call__" in base.__dict__)
    original = owner.__dict__["__call__"]
    if hasattr(original, "looks_for_conversion"):
        return

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        state = state_of(self)
        if state is None:
            return original(self, *args, **kwargs)
        scope = current()
        if scope is None or scope.conversion is not state.conversion:
            return _from_outside(state, functools.partial(original, self), args, kwargs)
        outer, scope.link = scope.link, state
        try:
            return original(self, *args, **kwargs)
        finally:
            scope.link = outer

    call.looks_for_conversion = True
    owner.__call__ = call


def _from_outside(state, function, args, kwargs):
    with tracing(state.conversion) as trace:
        scope = Scope(state.conversion, state, trace)
        with calling(scope):
            inside = function(*args, **kwargs)  # held until the end, as a result is something that is kept
            result = outwards(inside, scope)
        if trace is not None:
            trace.arguments, trace.results = [*args, *kwargs.values()], result
        return result


def outwards(result, scope):
    """Returns a (possibly nested) result of a model with its variables in float32 and in the order of their axes.

    Arrays in 16 bits become float32 as well; those in float32 stay the same objects, whatever their order.
    """
    if type(result) in (tuple, list):
        return type(result)(outwards(item, scope) for item in result)
    if isinstance(result, tuple) and hasattr(result, "_make"):  # a named tuple
        return result._make(outwards(item, scope) for item in result)
    if isinstance(result, dict):
        outside = copy.copy(result)  # of its class, such as OrderedDict
        outside.update((key, outwards(item, scope)) for key, item in result.items())
        return outside
    if isinstance(result, chainer.get_array_types()) and is_half(result.dtype):
        return outwards(chainer.Variable(result, requires_grad=False), scope).array
    if not isinstance(result, chainer.Variable) or not in_storage_dtype(result):
        return result
    if scope.nhwc:
        return channels_first(result, "float32")
    return scope.cast(result, "float32")
