"""Update rules and hooks: each file in ``FILES`` declares some, in this order; the plan of a step looks them up.

Read ``formulas`` first. A rule of Chainer is only a formula, as in ``momentum``; a rule of this package is an
optimizer, too, see ``own_rules`` and ``sgdw``. ``single_update`` runs a formula for one parameter on a GPU, ``norms``
computes L2 norms, ``offers`` lists the optimizers for configs, and ``generate`` writes ``own_optimizers`` and other
files from the formulas.
"""

import importlib

FILES = ("hook_formulas", "momentum", "adam", "adaptive", "variance", "lars", "lamb", "sgdw", "schedule_free", "lion")
for _name in FILES:
    importlib.import_module(f"{__name__}.{_name}")
