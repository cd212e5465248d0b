"""Chainer 7.8.1 on NumPy 2, Python 3.10 to 3.13 and CuPy 14.

It imports nothing else of mixprec. Read ``registry`` (the list of patches) and ``hooks`` (patches at import) first;
:mod:`mixprec.startup` calls ``hooks`` around the import of each module of Chainer. ``rebind``, ``wrapped``, ``half``
and ``gpu_presence`` are helpers. Each other module declares the patches of one concern, with what breaks without them.
"""

import importlib

_FILES = (
    *("chainer_imports", "chainer_kernels", "cupy14", "defects", "link_hooks", "losses", "multi_node", "numpy2"),
    *("onnx_mapping", "parallel_updaters", "scalars", "summary", "whole"),
)
for _name in _FILES:  # which declares their patches
    importlib.import_module(f"{__name__}.{_name}")
