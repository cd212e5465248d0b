"""A function of Chainer with other globals than its module's."""

import types


def rebound(function, **names):
    """Returns a copy of a function that sees ``names`` in place of the globals of these names.

    The module keeps its own: one whose ``numpy`` were replaced would fail its own ``xp is numpy`` tests.
    """
    names = {**function.__globals__, **names}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__ = function.__doc__
    copy.__qualname__ = function.__qualname__
    copy.__dict__.update(function.__dict__)
    return copy


def overlaid(function, module, **names):
    """Returns a copy of a function for which one of the modules among its globals has other attributes.

    Args:
        function: function of a module.
        module: name of the global.
        names: the attributes.
    """
    return rebound(function, **{module: Overlay(function.__globals__[module], **names)})


class Overlay:
    """``module`` with some names added or replaced, for :func:`rebound`."""

    def __init__(self, module, **names):
        vars(self).update(names, _module=module)

    def __getattr__(self, name):
        return getattr(self._module, name)
