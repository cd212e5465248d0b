"""Patches that are applied when Chainer is imported: each when its module is imported, and no sooner.

A function that is replaced right after its module was executed is the new one in every later ``from ... import``.
:mod:`mixprec.startup` calls :func:`enter` and :func:`mend` around the import of each module in :func:`names`.
"""

import contextlib
import functools

from mixprec.compat.registry import Patch, expanded, first_line, replacing

IMPORT = "import chainer"

_BEFORE, _WHILE, _AFTER = {}, {}, {}  # name of a module -> functions to call, or contexts to enter, around its import


def before_import(module, target):
    """Decorates the function ``make`` of a permanent patch that is applied before a module is executed.

    Args:
        module: name of the module.
        target: see :class:`~mixprec.compat.registry.Patch`.
    """

    def declare(make):
        patch = Patch(target, make, first_line(make), IMPORT)
        _BEFORE.setdefault(module, []).append(patch.apply)
        return make

    return declare


def while_importing(*modules, target):
    """Decorates the function ``make`` of a patch that is applied only while these modules are executed."""

    def declare(make):
        patch = Patch(target, make, first_line(make), f"while {modules[0]} is imported")
        for module in modules:
            _WHILE.setdefault(module, []).append(patch.applied)
        return make

    return declare


def inside(context, *modules):
    """Makes these modules be executed inside of the context manager that ``context()`` returns."""
    for module in modules:
        _WHILE.setdefault(module, []).append(context)


def after_import(*targets, why=None):
    """Decorates the function ``make`` of a patch that is applied to each target when its module has been executed.

    Args:
        targets: see :class:`~mixprec.compat.registry.Patch`.
        why: the reason, if it is not the first line of the docstring of ``make``.
    """

    def declare(make):
        patch = Patch(targets, make, why or first_line(make), IMPORT)
        for module in dict.fromkeys(name.partition(":")[0] for target in targets for name in expanded(target)):
            _AFTER.setdefault(module, []).append(functools.partial(patch.apply, module))
        return make

    return declare


def around(*targets, why=None):
    """Decorates a function that replaces each target, and gets the original as its first argument.

    It takes the arguments of :func:`after_import`.
    """

    def declare(run):
        after_import(*targets, why=why)(replacing(run))
        return run

    return declare


def names():
    """Names of all modules with hooks around their import."""
    return _BEFORE.keys() | _WHILE.keys() | _AFTER.keys()


def enter(name):
    """Runs the hooks before the import of ``name``; closing the returned ``ExitStack`` ends temporary patches."""
    with contextlib.ExitStack() as stack:
        for apply in _BEFORE.get(name, ()):
            apply()
        for context in _WHILE.get(name, ()):
            stack.enter_context(context())
        return stack.pop_all()


def mend(module):
    """Applies the patches of ``module``, which has just been executed."""
    for apply in _AFTER.get(module.__name__, ()):
        apply()
