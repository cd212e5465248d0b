"""The two kinds of shim: one provides something while a module is imported, one mends the module afterwards.

Both are registered under the name of the one module they concern and run when that module, and no other, is
loaded. A function mended right after its own module ran is the mended one in every ``from ... import`` that
follows.
"""

import contextlib
import sys

_WHILE_IMPORTING = {}
_AFTER_IMPORT = {}


def while_importing(*names):
    """Decorates a generator ``shim()``, a context manager around the execution of each module in
    ``names``.
    """

    def register(shim):
        for name in names:
            _WHILE_IMPORTING.setdefault(name, []).append(contextlib.contextmanager(shim))
        return shim

    return register


def after_import(*names):
    """Decorates a function ``shim(module)`` called when each module in ``names`` has been executed."""

    def register(shim):
        for name in names:
            _AFTER_IMPORT.setdefault(name, []).append(shim)
        return shim

    return register


def names():
    """Names of all modules that have a shim."""
    return _WHILE_IMPORTING.keys() | _AFTER_IMPORT.keys()


def enter(name):
    """Enters the shims around the import of ``name``; closing the returned ``ExitStack`` leaves them."""
    with contextlib.ExitStack() as stack:
        for shim in _WHILE_IMPORTING.get(name, ()):
            stack.enter_context(shim())
        return stack.pop_all()


def mend(module):
    """Applies the shims for ``module``, which has just been executed."""
    for shim in _AFTER_IMPORT.get(module.__name__, ()):
        shim(module)


@contextlib.contextmanager
def module_in_place(name, module):
    """Has ``module`` in ``sys.modules`` under ``name`` for a while, whatever was there before."""
    missing = object()
    previous = sys.modules.get(name, missing)
    sys.modules[name] = module
    try:
        yield module
    finally:
        if previous is missing:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = previous
