"""``mixprec.recompute``: intermediate results are recomputed in the backward pass, and not kept until then.

Users mark links, or wrap functions, before training. :mod:`mixprec.activation_memory.recomputed` does the work.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import chainer

from mixprec.activation_memory import cupy_draws
from mixprec.activation_memory.link_attributes import links_of, see
from mixprec.activation_memory.recomputed import run
from mixprec.activation_memory.repetition import inside_of_its_model
from mixprec.base import arguments
from mixprec.base.scoped import scoped
from mixprec.compat.registry import patch

_MARK = "_mixprec_recompute"  # attribute of a marked link

_What = TypeVar("_What", bound=Callable[..., Any])  # links are callable


class _Now(threading.local):
    """State of this thread.

    Attributes:
        link: the innermost marked link in a call, or ``None``.
        keeps_all: whether marks are ignored.
    """

    link = None
    keeps_all = False


_now = _Now()


class Mark:
    """The attribute of a marked link. It is copied, pickled and sent to other processes with the link.

    Args:
        kind: class of the link.
    """

    def __init__(self, kind):
        self._kind = kind
        self._install()

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._install()

    def _install(self):
        _install()
        call.apply_to(next(base for base in self._kind.__mro__ if "__call__" in base.__dict__), "__call__")
        if issubclass(self._kind, chainer.Sequential):
            sequential_copy.apply()


def recompute(what: _What, on: bool = True) -> _What:
    """Makes a link, or a function, recompute its intermediate results instead of keeping them.

    A call keeps only its arguments. In the backward pass it is repeated, gradients are computed, and the memory is
    freed again. That costs the time of one more forward pass of this part. Gradients, running statistics and random
    numbers are the same, bit for bit. Without backpropagation nothing changes.

    Restrictions and differences:

    - Three or more gradients of one variable may be added up in another order. In 16 bits, the gradient of a weight is
      rounded for each marked call that uses it: mark a whole sequence, not the steps of a recurrent cell.
    - A normalization that is marked without its ReLU is not fused with it.
    - The backward pass uses the current parameters: do not change them between the passes.
    - Side effects on anything but links, such as on a counter in a closure or on a list, happen twice.
    - Arguments, and their arrays, must not be changed between the passes.

    Example:
        >>> import chainer
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> import mixprec
        >>> model = chainer.Sequential(L.Linear(4, 8), F.relu, L.Linear(8, 8), F.relu, L.Linear(8, 2))
        >>> block = mixprec.recompute(model[2])
        >>> block is model[2]
        True
        >>> double = mixprec.recompute(lambda h: F.relu(h) * 2)

    Args:
        what: a link, which is marked in place, before or after :func:`mixprec.convert`; or a function of variables. Its
            arguments and results may be anything except iterators, with variables in lists, tuples and dicts. States of
            links, such as of an LSTM, are restored for the repeated call.
        on: ``False`` removes the mark.

    Returns:
        The link; for a function, a wrapper that calls it, or with ``on=False`` the function itself.

    Raises:
        TypeError: ``what`` is neither a link nor a function, or ``on`` is not a bool.
    """
    arguments.flag("on", on)
    if isinstance(what, chainer.Link):
        if on:
            vars(what)[_MARK] = Mark(type(what))
        else:
            vars(what).pop(_MARK, None)
        return what
    if isinstance(what, type) or not callable(what):
        raise arguments.not_a("what", what, "a chainer.Link or a function of variables")
    original = getattr(what, _MARK, what)
    return _wrapped(original) if on else original


def keeping_all():
    """A context in which nothing is recomputed: graphs of this thread contain all functions."""
    return scoped(_now, keeps_all=True)


def _install():
    call.apply_to(chainer.Link, "__call__")  # for the links inside, too
    cupy_draws.install()


def _wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if not _is_on():
            return function(*args, **kwargs)
        return run(name, function, args, kwargs, links_of(function, args, kwargs))

    _install()
    name = getattr(function, "__name__", type(function).__name__)
    vars(wrapper)[_MARK] = function
    return wrapper


def _is_on():
    return chainer.config.enable_backprop and chainer.config.schedule_func is None and not _now.keeps_all


@patch("*:*.__call__", when="mixprec.recompute")
def call(original):
    """Without it marked links keep all: this is ``chainer.Link.__call__``, or a class's own."""

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        see(self)
        if _MARK not in self.__dict__ or _now.link is self or not _is_on():
            return original(self, *args, **kwargs)
        return inside_of_its_model(self, functools.partial(_run, original, self), args, kwargs)

    return call


@patch("chainer.sequential:Sequential.copy", when="mixprec.recompute")
def sequential_copy(original):
    """Without it a copy of a chainer.Sequential, which is a new one, loses its mark."""

    @functools.wraps(original)
    def copy(self, mode="share"):
        copied = original(self, mode)
        if _MARK in vars(self):
            recompute(copied)
        return copied

    return copy


def _run(original, link, *args, **kwargs):
    def function(*args, **kwargs):
        with scoped(_now, link=link):
            return original(link, *args, **kwargs)

    return run(type(link).__name__, function, args, kwargs, list(link.links()))
