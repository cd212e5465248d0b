"""Calls a part of a converted model again after the call of the model, with the same conversions and fusions.

Recomputation uses it. Fusions are decided from earlier calls: a :class:`Repetition` keeps the knowledge from the first
call of the part, and makes sure that a repeated call does not add to it.
"""

import contextlib

import chainer

from mixprec.base.scoped import scoped
from mixprec.precision.conversion_state import active, state_of
from mixprec.rewrite.deferred import Deferred, compute, taken
from mixprec.rewrite.dispatch import call_from_outside
from mixprec.rewrite.scope import Scope, calling

_RESULT = "it is a result of a part that is recomputed"


class Repetition:
    """A part of the current call of a converted model in this thread; it holds no reference to that call.

    Without a current call, the part does not belong to a converted model.
    """

    def __init__(self):
        scope = active.scope
        self._conversion = None
        self._places, self._leaves = [], {}
        if scope is not None:
            self._conversion, self._root, self._link = scope.conversion, scope.root, scope.link
            self._keeps_float32 = scope.keeps_float32

    @contextlib.contextmanager
    def first(self):
        """A context for the first call."""
        scope = active.scope
        if scope is None:
            yield
            return
        with scoped(scope, noted=(*scope.noted, self._places)):
            yield
        # The whole model shares casts of parameters: gradients are added up before they are cast back.
        self._leaves = {key: held for key, held in scope.leaves.items() if isinstance(held[0], chainer.Variable)}

    def again(self):
        """A context for each further call."""
        if self._conversion is None:
            return scoped(active, scope=None)
        scope = Scope(self._conversion, self._root)
        scope.link, scope.keeps_float32 = self._link, self._keeps_float32
        scope.leaves = dict(self._leaves)
        scope.repeated = iter(self._places)
        return calling(scope)

    def casts(self):
        """Yields the function nodes that have converted inputs from outside of the model."""
        for _, converted in self._leaves.values():
            todo = [converted.node]
            while todo:
                function = todo.pop().creator_node
                if function is not None:
                    yield function
                    todo += function.inputs


def computed(variable, taker=None):
    """Computes a deferred variable.

    Args:
        variable: any variable.
        taker: name of the function that takes it; ``None`` if it is a result.
    """
    if type(variable) is Deferred:
        if taker is None:
            compute(variable, _RESULT)
        else:
            taken(variable, taker)


def inside_of_its_model(link, function, args, kwargs):
    """Calls a function for a link, within a call of its converted model if it belongs to one.

    Args:
        link: a link, converted or not.
        function: the function.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    state, scope = state_of(link), active.scope
    if state is None or (scope is not None and scope.conversion is state.conversion):
        return function(*args, **kwargs)
    return call_from_outside(state, function, args, kwargs)
