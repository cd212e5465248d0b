"""Which formulas the native library has, by the names that it knows them by.

Their C++ code is in ``mixprec/native/source/rules.inl``; :mod:`~mixprec.optimizer.batch.native_source` writes it from
their texts for CUDA. :class:`~mixprec.optimizer.batch.native_group.NativeGroup` looks formulas up here.
"""

from mixprec.optimizer.rules import adam, adaptive, formulas, lamb, lars, momentum, schedule_free, sgdw, variance

RULES = {
    "Sgd": formulas.SGD,
    "MomentumSgd": formulas.MOMENTUM_SGD,
    "CorrectedMomentumSgd": momentum.CORRECTED_MOMENTUM_SGD,
    "NesterovAg": momentum.NESTEROV_AG,
    "AdaGrad": adaptive.ADA_GRAD,
    "AdaDelta": adaptive.ADA_DELTA,
    "RmsProp": adaptive.RMSPROP,
    "RmsPropEpsInsideSqrt": adaptive.RMSPROP_EPS_INSIDE_SQRT,
    "RmsPropGraves": adaptive.RMSPROP_GRAVES,
    "Smorms3": variance.SMORMS3,
    "Msvag": variance.MSVAG,
    "Adam": adam.ADAM,
    "AmsGrad": adam.AMSGRAD,
    "AdaBound": adam.ADABOUND,
    "AmsBound": adam.AMSBOUND,
    "LarsUnadapted": lars.LARS_UNADAPTED,
    "LambUnadapted": lamb.LAMB_UNADAPTED,
    "Sgdw": sgdw.SGDW_PLAIN,
    "SgdwNesterov": sgdw.SGDW_NESTEROV,
    "ScheduleFreeSgd": schedule_free.SCHEDULE_FREE_SGD,
}
HOOKS = {
    "WeightDecay": formulas.WEIGHT_DECAY,
    "Lasso": formulas.LASSO,
    "GradientHardClipping": formulas.HARD_CLIPPING,
}
_NAMES = {id(formula): name for name, formula in [*RULES.items(), *HOOKS.items()]}


def name_of(formula):
    """Returns the name of a formula of a rule or a hook, ``None`` for one that the library does not have."""
    return _NAMES.get(id(formula))
