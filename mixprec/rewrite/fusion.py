"""Which additions and ReLUs wait with a batch normalization, and when what waits is computed.

:mod:`mixprec.rewrite.deferred` says what waiting is.
"""

import weakref

import chainer

from mixprec.rewrite.deferred import Deferred, Normalization, compute, is_waiting
from mixprec.rewrite.watching import ADD_RELU

_UNUSED = "it is not used"


def can_relu(x):
    """Whether a ReLU of a variable can wait: of a batch normalization, or of a sum with one, that waits."""
    return is_waiting(x) and (x.source is None or x.add is not None) and _is_as_before(x)


def _is_as_before(x):
    """Whether what is applied to a deferred variable now can be computed as what it stands for."""
    return chainer.config.enable_backprop == x.normalization.backprop and not chainer.get_function_hooks()


def relu(scope, x):
    """Returns the ReLU of a deferred variable, deferred."""
    return _register(scope, Deferred(x.normalization, x))


def can_add(x, other):
    """Whether an addition to a deferred variable can wait for a ReLU."""
    return (
        is_waiting(x)
        and x.source is None
        and x.normalization.site.fused in (None, ADD_RELU)
        and isinstance(other, chainer.Variable)
        and other is not x
        and other.shape == x.shape
        and other.dtype == x.dtype
        and _is_as_before(x)
    )


def add(scope, x, other):
    """Returns the sum of a deferred variable and another one, deferred."""
    return _register(scope, Deferred(x.normalization, x, other))


def normalization(scope, x, rest, build, statistics, moves):
    """Returns the result of a batch normalization: deferred, or computed and watched, as far as it is known.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        x: variable in a storage dtype.
        rest: see :class:`~mixprec.rewrite.deferred.Normalization`.
        build: see :class:`~mixprec.rewrite.deferred.Normalization`.
        statistics: see :class:`~mixprec.rewrite.deferred.Normalization`.
        moves: see :class:`~mixprec.rewrite.deferred.Normalization`.
    """
    for earlier in list(scope.pending.values()):
        if (moves or earlier.moves) and any(a is b for a in statistics for b in earlier.statistics):
            _finish(scope, earlier)
    site = scope.site()
    waiting = Normalization(x, rest, build, statistics, moves, site, scope)
    watched = scope.conversion.watching and site is not None and site.fused is None
    if site is not None and site.fused is not False and not watched:
        scope.pending[id(waiting)] = waiting
        return _register(scope, Deferred(waiting))
    result = waiting.compute()
    if watched:
        scope.watched.add(result, site)
    return result


def leave(scope, why):
    """Notes that a batch normalization is left to Chainer, and why."""
    site = scope.site()
    if site is not None:
        site.give_up(why)
    if scope.trace is not None:
        scope.trace.note_normalization(scope.link_name, "")


def _finish(scope, normalization):
    """Computes a batch normalization whose running statistics are wanted, together with what waits for it."""
    for variable in [reference() for reference in reversed(scope.deferred)]:
        if is_waiting(variable) and variable.normalization is normalization:
            compute(variable, "its running statistics are used before its result")
        if normalization.counted:
            return
    normalization.site.give_up(_UNUSED)
    with chainer.no_backprop_mode():
        normalization.compute()


def _register(scope, variable):
    scope.deferred.append(weakref.ref(variable))
    return variable


def settle(scope):
    """Ends a call: computes what is still deferred and was kept, and decides on what was watched."""
    for reference in reversed(scope.deferred):
        variable = reference()
        if variable is not None and is_waiting(variable):
            compute(variable, "it is kept, or a result of the model")
    scope.deferred.clear()
    for normalization in scope.pending.values():
        normalization.site.give_up(_UNUSED)
    move_statistics(scope)
    scope.watched.decide()


def move_statistics(scope):
    """Moves the running statistics of batch normalizations that nobody has computed."""
    with chainer.no_backprop_mode():
        for normalization in list(scope.pending.values()):
            if normalization.moves:
                normalization.compute()
    scope.pending.clear()
