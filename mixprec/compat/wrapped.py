"""Finds functions inside of wrappers, so that the registry knows whether a wrapper calls one of its replacements."""

import functools
import types


def behind(value):
    """Yields a value and, from outside to inside, the objects that it wraps, as far as they can be found.

    They are found in ``__wrapped__``, closures, defaults, attributes of callable objects, base classes, and the global
    variables that the outermost function uses.

    Example:
        >>> plain = lambda: 1
        >>> def wrapper():
        ...     return plain()
        >>> plain in behind(wrapper)
        True
    """
    seen, waiting = set(), [value, *_named_globals(value)]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += _held(each)


def _held(value):
    if isinstance(value, type):
        return value.__mro__[1:]
    if isinstance(value, types.ModuleType):
        return ()
    if isinstance(value, (types.MethodType, staticmethod, classmethod)):
        return value.__func__, *_attributes(getattr(value, "__self__", None))
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, types.FunctionType):
        defaults = *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()
        return *_closure(value), *defaults, *_attributes(value)
    return _attributes(value) if callable(value) else ()


def _attributes(value):
    attributes = {} if isinstance(value, types.ModuleType) else getattr(value, "__dict__", None)
    return tuple(attributes.values()) if isinstance(attributes, dict) else ()


def _closure(function):
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    return cells


def _named_globals(value):
    if not isinstance(value, types.FunctionType):
        return []
    return [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
