"""Attributes that have other values for the length of a block, such as what a thread is doing now."""

import contextlib


@contextlib.contextmanager
def scoped(holder, **values):
    """Inside of the block attributes of an object have other values; after it those that they had before.

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
