"""The formula of each update rule, of Chainer's and of this package; the plan of a step looks rules up here."""

from chainer.optimizers.ada_delta import AdaDeltaRule
from chainer.optimizers.ada_grad import AdaGradRule
from chainer.optimizers.adam import AdamRule
from chainer.optimizers.corrected_momentum_sgd import CorrectedMomentumSGDRule
from chainer.optimizers.momentum_sgd import MomentumSGDRule
from chainer.optimizers.msvag import MSVAGRule
from chainer.optimizers.nesterov_ag import NesterovAGRule
from chainer.optimizers.rmsprop import RMSpropRule
from chainer.optimizers.rmsprop_graves import RMSpropGravesRule
from chainer.optimizers.sgd import SGDRule
from chainer.optimizers.smorms3 import SMORMS3Rule

from mixprec.optimizer.rules.adam import ADABOUND, ADAM, AMSBOUND, AMSGRAD
from mixprec.optimizer.rules.adaptive import ADA_DELTA, ADA_GRAD, RMSPROP, RMSPROP_EPS_INSIDE_SQRT, RMSPROP_GRAVES
from mixprec.optimizer.rules.formulas import MOMENTUM_SGD, SGD
from mixprec.optimizer.rules.lamb import LAMB_ADAPTED, LAMB_UNADAPTED, LAMBRule
from mixprec.optimizer.rules.lars import LARS_ADAPTED, LARS_UNADAPTED, LARSRule
from mixprec.optimizer.rules.momentum import CORRECTED_MOMENTUM_SGD, NESTEROV_AG
from mixprec.optimizer.rules.schedule_free import SCHEDULE_FREE_SGD, ScheduleFreeSGDRule
from mixprec.optimizer.rules.sgdw import SGDW_NESTEROV, SGDW_PLAIN, SGDWRule
from mixprec.optimizer.rules.variance import MSVAG, SMORMS3

# By class and, for those that have them, by the switches among the hyperparameters.
_SWITCHES = {
    AdamRule: ("amsgrad", "adabound"),
    RMSpropRule: ("eps_inside_sqrt",),
    LARSRule: ("adapt",),
    LAMBRule: ("adapt",),
    SGDWRule: ("nesterov",),
}
RULE_FORMULAS = {
    (SGDRule,): SGD,
    (MomentumSGDRule,): MOMENTUM_SGD,
    (CorrectedMomentumSGDRule,): CORRECTED_MOMENTUM_SGD,
    (NesterovAGRule,): NESTEROV_AG,
    (AdaGradRule,): ADA_GRAD,
    (AdaDeltaRule,): ADA_DELTA,
    (RMSpropRule, False): RMSPROP,
    (RMSpropRule, True): RMSPROP_EPS_INSIDE_SQRT,
    (RMSpropGravesRule,): RMSPROP_GRAVES,
    (SMORMS3Rule,): SMORMS3,
    (MSVAGRule,): MSVAG,
    (AdamRule, False, False): ADAM,
    (AdamRule, True, False): AMSGRAD,
    (AdamRule, False, True): ADABOUND,
    (AdamRule, True, True): AMSBOUND,
    (LARSRule, True): LARS_ADAPTED,
    (LARSRule, False): LARS_UNADAPTED,
    (LAMBRule, True): LAMB_ADAPTED,
    (LAMBRule, False): LAMB_UNADAPTED,
    (SGDWRule, False): SGDW_PLAIN,
    (SGDWRule, True): SGDW_NESTEROV,
    (ScheduleFreeSGDRule,): SCHEDULE_FREE_SGD,
}


def rule_formula_of(rule):
    """Returns the :class:`~mixprec.optimizer.rules.formulas.RuleFormula` of a rule, ``None`` for an unknown one."""
    kind = type(rule)
    switches = (bool(getattr(rule.hyperparam, name)) for name in _SWITCHES.get(kind, ()))
    return RULE_FORMULAS.get((kind, *switches))
