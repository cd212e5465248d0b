"""Mixed-precision training for Chainer 7.8.1.

Importing this package makes ``import chainer`` work with current NumPy, Python and CuPy (:mod:`mixprec.compat`). The
names and packages below are loaded on first use, so that the import itself is fast. Editors and type checkers do not
run ``__getattr__``: they read the imports under ``TYPE_CHECKING``.

The ground: ``base``, ``compat``, ``old_code``, ``native``, ``backends``. The library, for any program with Chainer:
``optimizer`` and ``rewrite`` (``convert``) on ``precision``, ``functions``, ``links``, ``kfac`` and ``distributed``;
``graph_capture``, ``activation_memory``, ``data``, ``export``, ``training``; for plain Chainer ``bridge`` and
``patches`` (their list). The application, the only part that reads configs: ``app`` and ``recipes``. ``startup`` loads
``compat`` when an interpreter starts.
"""

import importlib
from typing import TYPE_CHECKING

from mixprec import base as _base
from mixprec import startup as _startup  # noqa: F401  (registers the import hook for Chainer)
from mixprec.base.optimizer_names import OWN as _OWN

__version__ = _base.VERSION

_HOMES = {
    "MixedPrecisionOptimizer": "mixprec.optimizer",
    "KFAC": "mixprec.kfac.preconditioner",
    "DynamicLossScale": "mixprec.precision.loss_scale",
    "StaticLossScale": "mixprec.precision.fixed_scales",
    "NoLossScale": "mixprec.precision.fixed_scales",
    "LossScaleExhausted": "mixprec.precision.loss_scale",
    **_OWN,
    "capture": "mixprec.graph_capture",
    "convert": "mixprec.rewrite",
    "offload": "mixprec.activation_memory.offloading",
    "recompute": "mixprec.activation_memory.recomputation",
    "revert": "mixprec.rewrite",
}

# Packages and modules that are attributes after a plain ``import mixprec``.
_MODULES = ("data", "export", "functions", "graph_capture", "links", "patches", "recipes", "training")

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from mixprec import data as data
    from mixprec import export as export
    from mixprec import functions as functions
    from mixprec import graph_capture as graph_capture
    from mixprec import links as links
    from mixprec import patches as patches
    from mixprec import recipes as recipes
    from mixprec import training as training
    from mixprec.activation_memory.offloading import offload as offload
    from mixprec.activation_memory.recomputation import recompute as recompute
    from mixprec.graph_capture.captured import capture as capture
    from mixprec.kfac.preconditioner import KFAC as KFAC
    from mixprec.optimizer import MixedPrecisionOptimizer as MixedPrecisionOptimizer
    from mixprec.optimizer.rules.own_optimizers import *  # noqa: F403
    from mixprec.precision.fixed_scales import NoLossScale as NoLossScale
    from mixprec.precision.fixed_scales import StaticLossScale as StaticLossScale
    from mixprec.precision.loss_scale import DynamicLossScale as DynamicLossScale
    from mixprec.precision.loss_scale import LossScaleExhausted as LossScaleExhausted
    from mixprec.rewrite.convert import convert as convert
    from mixprec.rewrite.convert import revert as revert
else:  # with a ``__getattr__`` a type checker would accept any name

    def __getattr__(name):
        if name in _MODULES:
            return importlib.import_module(f"mixprec.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'mixprec' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
