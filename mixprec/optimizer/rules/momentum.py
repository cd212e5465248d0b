"""Momentum SGD with corrections: that of Goyal et al., and Nesterov's."""

from mixprec.optimizer.rules.formulas import RuleFormula

# Goyal et al. 2017, "Accurate, Large Minibatch SGD", equation (9): a new learning rate does not reach into old steps.
CORRECTED_MOMENTUM_SGD = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum"),
    numbers={"lr": "lr", "momentum": "momentum"},
    device="""
        v = momentum * v - grad;
        param += lr * v;
    """,
)


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
    device="""
        v = momentum * v - lr * grad;
        param += momentum_squared * v;
        param -= lr_now * grad;
    """,
)
