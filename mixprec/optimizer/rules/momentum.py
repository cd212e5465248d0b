"""Momentum SGD with corrections: that of Goyal et al., and Nesterov's."""

import numpy as np

from mixprec.optimizer.rules.formulas import RuleFormula


def _corrected_momentum_sgd(p, g, states, numbers, a, b):
    (v,) = states
    lr, momentum = numbers
    np.multiply(v, momentum, out=v)
    np.subtract(v, g, out=v)
    np.multiply(v, lr, out=a)
    np.add(p, a, out=p)


# Goyal et al. 2017, "Accurate, Large Minibatch SGD", equation (9): a new learning rate does not reach into old steps.
CORRECTED_MOMENTUM_SGD = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum"),
    numbers={"lr": "lr", "momentum": "momentum"},
    host=_corrected_momentum_sgd,
    device="""
        v = momentum * v - grad;
        param += lr * v;
    """,
)


def _nesterov_ag(p, g, states, numbers, a, b):
    (v,) = states
    lr, momentum, momentum_squared, lr_now = numbers
    np.multiply(v, momentum, out=v)
    np.multiply(g, lr, out=a)
    np.subtract(v, a, out=v)
    np.multiply(v, momentum_squared, out=a)
    np.add(p, a, out=p)
    np.multiply(g, lr_now, out=g)
    np.subtract(p, g, out=p)


# Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
NESTEROV_AG = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum"),
    numbers={
        "lr": "lr",
        "momentum": "momentum",
        "momentum_squared": "momentum * momentum",
        "lr_now": "(1 + momentum) * lr",
    },
    host=_nesterov_ag,
    device="""
        v = momentum * v - lr * grad;
        param += momentum_squared * v;
        param -= lr_now * grad;
    """,
)
