"""Chainer 7.8.1 on NumPy 2, Python 3.10 to 3.13 and CuPy 14.

The ground floor: it imports nothing else of mixprec. Each submodule declares the patches of one concern, in
:mod:`~mixprec.compat.registry`, with what breaks without them. :mod:`mixprec.startup` calls
:mod:`~mixprec.compat.hooks` around the import of each module of Chainer.
"""

# Importing the modules declares their patches.
from mixprec.compat import (  # noqa: F401
    chainer_imports,
    chainer_kernels,
    cupy14,
    defects,
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
