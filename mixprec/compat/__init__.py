"""Chainer 7.8.1 on NumPy 2, Python 3.10 to 3.13 and CuPy 14.

Every shim lies in the submodule of its concern, is registered under the Chainer module it mends, and says
what breaks without it. :mod:`mixprec.startup` calls the two functions below around the import of each of
these modules.
"""

# Importing the modules registers their shims.
from mixprec.compat import (  # noqa: F401
    cudnn,
    cudnn_branches,
    cupy14,
    defects,
    hooks,
    importing,
    kernels,
    losses,
    multi_node,
    numpy2,
    scalars,
    summary,
    updates,
    whole,
)

__all__ = ["after_import", "before_import", "shimmed_modules"]


def shimmed_modules():
    """Names of the modules of Chainer and ChainerMN that have shims, as a set."""
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
