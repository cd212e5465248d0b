"""The module at ``cupy.cudnn``: it has the names of :mod:`mixprec.bridge.functions`.

They are imported when the first of them is read, and not while Chainer is being imported: the backends below them
import Chainer.
"""


def __getattr__(name):
    if not name.startswith("_"):
        from mixprec.bridge import functions

        if hasattr(functions, name):
            value = globals()[name] = getattr(functions, name)
            return value
    raise AttributeError(f"cupy.cudnn, which is mixprec's bridge to cuDNN 9, has no {name!r}")
