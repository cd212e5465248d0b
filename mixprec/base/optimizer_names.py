"""The optimizers that a config can name, and the public ones of this package, without an import of Chainer.

Generated from mixprec/optimizer/rules by ``python -m mixprec.optimizer.rules.generate``.
"""
# fmt: off

# All optimizers, in the order of the reference.
OPTIMIZERS = ("SGD", "MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "Adam", "AdamW", "AMSGrad", "AdaBound",
    "AMSBound", "AdaGrad", "RMSprop", "RMSpropGraves", "SMORMS3", "MSVAG", "LARS", "LAMB", "SGDW", "ScheduleFreeSGD",
    "Lion")

# The optimizers of this package, each with its module.
OWN = {"LARS": "mixprec.optimizer.rules.lars", "LAMB": "mixprec.optimizer.rules.lamb",
    "SGDW": "mixprec.optimizer.rules.sgdw", "ScheduleFreeSGD": "mixprec.optimizer.rules.schedule_free",
    "Lion": "mixprec.optimizer.rules.lion"}

# The name of the learning rate, where it is not lr.
RATES = {"Adam": "alpha", "AdamW": "eta", "AMSGrad": "alpha", "AdaBound": "alpha", "AMSBound": "alpha"}

# The name of the weight decay in the formula, where there is one.
DECAYS = {"AdamW": "weight_decay_rate", "LARS": "weight_decay", "LAMB": "weight_decay", "SGDW": "weight_decay",
    "ScheduleFreeSGD": "weight_decay", "Lion": "weight_decay"}

# Optimizers whose weight decay is a share of the parameter that follows the learning rate.
DECOUPLED = ("AdamW", "SGDW", "Lion")

# Optimizers whose models are evaluated at an average of their weights.
WITH_AVERAGE = ("ScheduleFreeSGD",)

# Keys of the section optimizer that only some optimizers have as an argument, and which.
WITH_KEY = {"momentum": ("MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "RMSpropGraves", "LARS", "SGDW",
    "ScheduleFreeSGD"), "trust_coefficient": ("LARS",), "nesterov": ("SGDW",)}

# Arguments that are the same in all configs.
FIXED = {"AdamW": {"alpha": 1.0}}
