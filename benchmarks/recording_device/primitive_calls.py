"""Calls of primitives, and the name of the one that asks."""

import contextlib
import functools
from typing import NamedTuple

import numpy as np

from mixprec.backends.device_log import asked_by

_calls = None
_inside = False


class Spec(NamedTuple):
    """What stands for an array in a :class:`Call`.

    Attributes:
        shape: of the array.
        dtype: name of its dtype.
    """

    shape: tuple
    dtype: str


class Call(NamedTuple):
    """A call of a primitive, as values: two calls that do the same on other arrays are equal.

    Attributes:
        name: of the primitive.
        arguments: its arguments, a :class:`Spec` in the place of each array.
        keywords: its keyword arguments, likewise, as sorted pairs of name and value.
    """

    name: str
    arguments: tuple
    keywords: tuple


@contextlib.contextmanager
def calls():
    """Collects the calls of primitives inside of the block in the list that it gives, of :class:`Call`."""
    global _calls
    outer, _calls = _calls, []
    try:
        yield _calls
    finally:
        _calls = outer


def named(name, primitive):
    """Returns a primitive whose calls, if it is the outermost, are collected, and whose notes have its name."""

    @functools.wraps(primitive)
    def call(*arguments, **keywords):
        global _inside
        if _calls is not None and not _inside:
            _calls.append(Call(name, _specs(arguments), tuple(sorted((k, _specs(v)) for k, v in keywords.items()))))
        outer, _inside = _inside, True
        try:
            with asked_by(name):
                return primitive(*arguments, **keywords)
        finally:
            _inside = outer

    return call


def _specs(value):
    """Puts a :class:`Spec` in the place of arrays, also those in tuples."""
    if isinstance(value, np.ndarray):
        return Spec(value.shape, value.dtype.name)
    if isinstance(value, tuple):
        parts = map(_specs, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
