"""Registers the import hook that makes Chainer 7.8.1 importable.

``mixprec_startup.pth``, installed beside the package, imports this module in every interpreter of the environment:
``import chainer`` then works before ``import mixprec``, and in workers started by forkserver or spawn, which unpickle
Chainer objects before any line of the user's script ran (a worker that dies there hangs its parent).
Nothing is loaded until somebody imports Chainer.
"""

import importlib.util
import sys


class _ChainerFinder:
    """Meta-path finder that surrounds the import of Chainer with :mod:`mixprec.compat`'s shims."""

    def __init__(self):
        self._searching = False

    def find_spec(self, name, path=None, target=None):
        if name != "chainer" or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ShimmedLoader(spec.loader)
        return spec


class _ShimmedLoader:
    """Delegates to Chainer's own loader, with the shims applied before and after its execution."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        from mixprec import compat

        module.__spec__.loader = module.__loader__ = self._loader
        compat.before_import()
        self._loader.exec_module(module)
        compat.after_import()


def register():
    """Puts the finder first on ``sys.meta_path``, once."""
    if not any(isinstance(finder, _ChainerFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ChainerFinder())


register()
