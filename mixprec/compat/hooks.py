"""Patches that are applied when Chainer is imported: each when the module that it concerns is, and no sooner.

A function that is replaced right after its own module ran is the new one in every ``from ... import`` that follows.
:mod:`mixprec.startup` calls :func:`enter` and :func:`mend` around the import of each module in :func:`names`.
"""

import contextlib
import functools

from mixprec.compat.registry import Patch, expanded, first_line

IMPORT = "import chainer"

_BEFORE, _WHILE, _AFTER = {}, {}, {}  # name of a module -> what is called, or entered, around its import


def before_import(module, target):
    """Decorates the function ``make`` of a patch that is applied before a module is executed, and stays.

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
    """Decorates the function ``make`` of a patch that is there while these modules are executed, and not longer."""

    def declare(make):
        patch = Patch(target, make, first_line(make), f"while {modules[0]} is imported")
        for module in modules:
            _WHILE.setdefault(module, []).append(patch.applied)
        return make

    return declare


def inside(context, *modules):
    """Has these modules executed inside of a context manager, which a function returns."""
    for module in modules:
        _WHILE.setdefault(module, []).append(context)


def after_import(*targets):
    """Decorates the function ``make`` of a patch that is applied to each target when its module has been executed."""

    def declare(make):
        declare_after_import(targets, make, first_line(make))
        return make

    return declare


def declare_after_import(targets, make, why):
    """Declares a patch as :func:`after_import` does, with a reason that is not the docstring of ``make``."""
    patch = Patch(targets, make, why, IMPORT)
    for module in dict.fromkeys(name.partition(":")[0] for target in patch.targets for name in expanded(target)):
        _AFTER.setdefault(module, []).append(functools.partial(patch.apply, module))


def names():
    """Names of all modules around whose import something is done."""
    return _BEFORE.keys() | _WHILE.keys() | _AFTER.keys()


def enter(name):
    """Does what comes before the import of ``name``; closing the returned ``ExitStack`` ends what lasts as long."""
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
