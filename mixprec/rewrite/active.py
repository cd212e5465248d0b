"""Which call of a converted model is under way in this thread."""

import contextlib
import threading

_local = threading.local()


def current():
    """The :class:`~mixprec.rewrite.scope.Scope` of the call of a converted model that is under way, or ``None``."""
    return getattr(_local, "scope", None)


@contextlib.contextmanager
def entering(scope):
    """Makes a scope the current one for the block."""
    outer = current()
    _local.scope = scope
    try:
        yield
    finally:
        _local.scope = outer
