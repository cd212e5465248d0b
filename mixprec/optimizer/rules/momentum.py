"""Gradient descent with and without momentum."""

import numpy as np

from mixprec.optimizer.batch.expression import Expression


def _sgd(p, g, states, numbers, a, b):
    (lr,) = numbers
    np.multiply(g, lr, out=g)
    np.subtract(p, g, out=p)


SGD = Expression(
    states=(),
    hyperparameters=("lr",),
    numbers={"lr": "lr"},
    host=_sgd,
    device="""
        param -= lr * grad;
    """,
)


def _momentum_sgd(p, g, states, numbers, a, b):
    (v,) = states
    lr, momentum = numbers
    np.multiply(v, momentum, out=v)
    np.multiply(g, lr, out=g)
    np.subtract(v, g, out=v)
    np.add(p, v, out=p)


MOMENTUM_SGD = Expression(
    states=("v",),
    hyperparameters=("lr", "momentum"),
    numbers={"lr": "lr", "momentum": "momentum"},
    host=_momentum_sgd,
    device="""
        v = momentum * v - lr * grad;
        param += v;
    """,
)


def _corrected_momentum_sgd(p, g, states, numbers, a, b):
    (v,) = states
    lr, momentum = numbers
    np.multiply(v, momentum, out=v)
    np.subtract(v, g, out=v)
    np.multiply(v, lr, out=a)
    np.add(p, a, out=p)


# Goyal et al. 2017, "Accurate, Large Minibatch SGD", equation (9): a new learning rate does not reach into old steps.
CORRECTED_MOMENTUM_SGD = Expression(
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
NESTEROV_AG = Expression(
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
