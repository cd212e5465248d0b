"""Update rules: each file here declares some, in the order of this list; the plan of a step looks them up.

A rule of Chainer is a formula. A rule of this package is an optimizer, too: ``sgdw.py`` is an example.
"""

import importlib

FILES = (
    "hook_formulas",
    "momentum",
    "adam",
    "adaptive",
    "variance",
    "lars",
    "lamb",
    "sgdw",
    "schedule_free",
    "lion",
)
for _name in FILES:
    importlib.import_module(f"{__name__}.{_name}")
