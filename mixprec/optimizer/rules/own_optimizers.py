"""The public optimizers of this package: what a type checker reads as names of ``mixprec``.

Generated from mixprec/optimizer/rules by ``python -m mixprec.optimizer.rules.generate``.
"""

from mixprec.optimizer.rules.lamb import LAMB
from mixprec.optimizer.rules.lars import LARS
from mixprec.optimizer.rules.lion import Lion
from mixprec.optimizer.rules.schedule_free import ScheduleFreeSGD
from mixprec.optimizer.rules.sgdw import SGDW

__all__ = ["LAMB", "LARS", "SGDW", "Lion", "ScheduleFreeSGD"]
