"""Gradient descent: plain, with momentum, and with corrections of it by Goyal et al. and Nesterov."""

from chainer.optimizers.corrected_momentum_sgd import CorrectedMomentumSGDRule
from chainer.optimizers.momentum_sgd import MomentumSGDRule
from chainer.optimizers.nesterov_ag import NesterovAGRule
from chainer.optimizers.sgd import SGDRule

from mixprec.optimizer.rules.formulas import RuleFormula, numbers
from mixprec.optimizer.rules.offers import offer

RuleFormula(name="Sgd", rule=SGDRule, states=(), numbers=numbers("lr"), device="param -= lr * grad;")
offer("SGD")

RuleFormula(
    name="MomentumSgd",
    rule=MomentumSGDRule,
    states=("v",),
    numbers=numbers("lr", "momentum"),
    device="""
        v = momentum * v - lr * grad;
        param += v;
    """,
)
offer("MomentumSGD", keys=("momentum",))

# Goyal et al. 2017, "Accurate, Large Minibatch SGD", equation (9): a new learning rate does not affect old steps.
RuleFormula(
    name="CorrectedMomentumSgd",
    rule=CorrectedMomentumSGDRule,
    states=("v",),
    numbers=numbers("lr", "momentum"),
    device="""
        v = momentum * v - grad;
        param += lr * v;
    """,
)
offer("CorrectedMomentumSGD", keys=("momentum",))

# Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
RuleFormula(
    name="NesterovAg",
    rule=NesterovAGRule,
    states=("v",),
    numbers=numbers("lr", "momentum", momentum_squared="momentum * momentum", lr_now="(1 + momentum) * lr"),
    device="""
        v = momentum * v - lr * grad;
        param += momentum_squared * v;
        param -= lr_now * grad;
    """,
)
offer("NesterovAG", keys=("momentum",))
