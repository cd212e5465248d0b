"""Registers the import hook that makes Chainer 7.8.1 importable.

``mixprec_startup.pth``, installed beside the package, imports this module in every interpreter of the environment.
``import chainer`` then works before ``import mixprec``, and in workers started by forkserver or spawn, which unpickle
Chainer objects before any line of the user's script has run (a worker that fails there hangs its parent). Nothing else
is loaded until the program imports Chainer, unless the user asks for :mod:`mixprec.old_code` by ``MIXPREC_OLD_CODE=1``.
"""

import os
import sys

_PACKAGES = ("chainer", "chainermn", "onnx_chainer")


class _ChainerFinder:
    """Meta-path finder that applies the patches of :func:`_patches` around the import of Chainer's modules."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in _PACKAGES:
            return None
        if name not in _patches().names():
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ShimmedLoader(spec.loader)
                return spec
        return None


class _ShimmedLoader:
    """Delegates to the module's own loader, with the patches applied around and after its execution."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        patches = _patches()
        module.__spec__.loader = module.__loader__ = self._loader
        with patches.enter(module.__name__):
            self._loader.exec_module(module)
        patches.mend(module)


def _patches():
    """Returns :mod:`mixprec.compat.hooks`, after all patches around imports are declared, including the bridge's."""
    from mixprec.base import variables
    from mixprec.bridge import branches, missing_cupy, placing  # noqa: F401
    from mixprec.compat import hooks

    variables.check()
    return hooks


def register():
    """Puts the finder first on ``sys.meta_path``, once, and patches modules of Chainer that are loaded already."""
    if any(isinstance(finder, _ChainerFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _ChainerFinder())
    if "chainer" in sys.modules:  # loaded by a user's shim, in an interpreter that did not load the .pth file
        patches = _patches()
        for name in patches.names() & sys.modules.keys():
            patches.mend(sys.modules[name])


def restore_old_names():
    """Imports :mod:`mixprec.old_code` if the environment variable asks for it."""
    # An invalid value is an error when Chainer is imported: an error here would break every Python of the environment.
    if os.environ.get("MIXPREC_OLD_CODE") == "1":
        import mixprec.old_code  # noqa: F401


register()
restore_old_names()
