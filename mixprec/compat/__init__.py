"""Chainer 7.8.1 on NumPy 2, Python 3.10 to 3.13 and CuPy 14.

The ground floor: it imports nothing else of mixprec. Each submodule declares the patches of one concern, in
:mod:`~mixprec.compat.registry`, with what breaks without them. :mod:`mixprec.startup` calls the functions below around
the import of each module of Chainer.
"""

# Importing the modules declares their patches.
from mixprec.compat import (  # noqa: F401
    chainer_imports,
    chainer_kernels,
    cupy14,
    defects,
    hooks,
    link_hooks,
    losses,
    multi_node,
    numpy2,
    onnx_mapping,
    parallel_updaters,
    scalars,
    summary,
    whole,
)

__all__ = ["after_import", "before_import", "shimmed_modules"]


def shimmed_modules():
    """Names of the modules around whose import something is done, as a set."""
    return hooks.names()


def before_import(name):
    """Provides what the module called ``name`` needs while it is executed.

    Returns:
        contextlib.ExitStack: to be closed when it has been executed, or has failed.
    """
    return hooks.enter(name)


def after_import(module):
    """Mends ``module``, which has just been executed."""
    hooks.mend(module)
