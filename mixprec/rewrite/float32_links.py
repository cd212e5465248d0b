"""Links that stay in float32 by ``keep_float32``: finding them in a model, and calling them.

``convert`` asks for the former. While a converted model runs, :mod:`mixprec.rewrite.replacements` calls such a link
here: whatever runs in the call, other links included, gets float32.
"""

import fnmatch

import chainer

from mixprec.base import arguments
from mixprec.base.dtypes import FLOAT32, is_half
from mixprec.base.name_patterns import UnknownName
from mixprec.base.nested import mapped
from mixprec.base.scoped import scoped
from mixprec.precision.conversion_state import active
from mixprec.rewrite.deferred import Deferred, taken

_OURS = "mixprec.links."


def check(keep):
    """Returns ``keep_float32`` as a tuple.

    Raises:
        TypeError: it is not a tuple or list of patterns and classes of links.
    """
    what = 'a tuple of patterns such as "/fc/*" and of classes of links'
    for each in arguments.instance("keep_float32", keep, (tuple, list), what):
        if not (isinstance(each, str) or (isinstance(each, type) and issubclass(each, chainer.Link))):
            raise TypeError(f"keep_float32 must be {what}; found {arguments.found(each)} in it")
    return tuple(keep)


def is_ours(link):
    """Whether a link is one of :mod:`mixprec.links`, which has a dtype of its own."""
    return type(link).__module__.startswith(_OURS)


def select(model, keep):
    """Returns the ids of the links that stay in float32: links that match by any of their names, and all below them.

    Args:
        model: a link.
        keep: tuple of patterns, as of :func:`fnmatch.fnmatchcase` for the name of a link, and of classes of links.

    Raises:
        UnknownName: a pattern matches no link.
        ValueError: no link is an instance of a class.
    """
    kept = set()
    named = [(name, link) for name, link in model.namedlinks() if not is_ours(link)] if keep else []
    for each in keep:
        if isinstance(each, str):
            found = [link for name, link in named if fnmatch.fnmatchcase(name, each)]
            if not found:
                raise UnknownName("keep_float32", "link", each, [name for name, _ in named])
        else:
            found = [link for _, link in named if isinstance(link, each)]
            if not found:
                classes = ", ".join(dict.fromkeys(type(link).__name__ for _, link in named))
                raise ValueError(f"keep_float32: no link is of the class {each.__name__}; there are {classes}")
        kept |= {id(below) for link in found for below in link.links()}
    return kept


def call(scope, function, args, kwargs):
    """Calls a link that stays in float32: its inputs in 16 bits, variables and arrays, are cast to float32.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        function: what Chainer calls.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    is_outermost = not scope.keeps_float32
    with scoped(scope, keeps_float32=True):
        if is_outermost:
            name = f"{scope.link_name or '/'} in float32"
            args, kwargs = widened(scope, args, name), widened(scope, kwargs, name)
        return function(*args, **kwargs)


def in_float32(function, *args):
    """Calls a function in float32 if a converted model is running, otherwise as it is.

    Args:
        function: any callable.
        args: its positional arguments.
    """
    return function(*args) if active.scope is None else call(active.scope, function, args, {})


def widened(scope, value, taker):
    """Returns a (possibly nested) value with its variables and arrays of 16 bits in float32, in their memory order.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        value: the value.
        taker: name of the function or link that takes it, for batch normalizations that cannot wait then.
    """

    def in_float32(x):
        if isinstance(x, chainer.Variable) and is_half(x.dtype):
            if type(x) is Deferred:
                taken(x, taker)
            return scope.cast(x, FLOAT32)
        if isinstance(x, chainer.get_array_types()) and is_half(x.dtype):
            return scope.cast(chainer.Variable(x, requires_grad=False), FLOAT32).array
        return x

    return mapped(value, in_float32)
