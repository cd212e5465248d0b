"""Temporary values of attributes, such as the state of a thread."""

import contextlib


@contextlib.contextmanager
def scoped(holder, **values):
    """A context in which attributes of an object have other values; afterwards they are restored.

    Example:
        >>> import types
        >>> now = types.SimpleNamespace(label=None)
        >>> with scoped(now, label="inside"):
        ...     now.label
        'inside'
        >>> now.label is None
        True
    """
    before = {name: getattr(holder, name) for name in values}
    _set(holder, values)
    try:
        yield
    finally:
        _set(holder, before)


def _set(holder, values):
    for name, value in values.items():
        setattr(holder, name, value)
