"""Adam and its variants, which correct the bias of their running averages."""

import numpy as np

from mixprec.update.expression import Expression


def _moments(g, m, v, one_minus_beta1, one_minus_beta2, a):
    np.subtract(g, m, out=a)
    np.multiply(a, one_minus_beta1, out=a)
    np.add(m, a, out=m)
    np.multiply(g, g, out=a)
    np.subtract(a, v, out=a)
    np.multiply(a, one_minus_beta2, out=a)
    np.add(v, a, out=v)


def _step(p, m, step, keep, minus_eta):
    np.multiply(step, m, out=step)
    np.multiply(step, minus_eta, out=step)
    if keep != 1:
        np.multiply(p, keep, out=p)
    np.add(p, step, out=p)


def _rate(second_moment, alpha_t, eps, a):
    np.sqrt(second_moment, out=a)
    np.add(a, eps, out=a)
    np.divide(alpha_t, a, out=a)


def _adam(p, g, states, numbers, a, b):
    m, v = states
    one_minus_beta1, one_minus_beta2, alpha_t, eps, keep, minus_eta = numbers
    _moments(g, m, v, one_minus_beta1, one_minus_beta2, a)
    _rate(v, alpha_t, eps, a)
    _step(p, m, a, keep, minus_eta)


_HYPERPARAMETERS = ("alpha", "beta1", "beta2", "eps", "eta", "weight_decay_rate")
_NUMBERS = {
    "one_minus_beta1": "1.0 - beta1",
    "one_minus_beta2": "1.0 - beta2",
    "alpha_t": "alpha * sqrt(1.0 - pow(beta2, t)) / (1.0 - pow(beta1, t))",
    "eps": "eps",
    "keep": "1.0 - eta * weight_decay_rate",
    "minus_eta": "-eta",
}
_MOMENTS = """
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
"""

# Kingma and Ba 2015, "Adam"; weight_decay_rate: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
ADAM = Expression(
    states=("m", "v"),
    hyperparameters=_HYPERPARAMETERS,
    numbers=_NUMBERS,
    not_flushed=("eps",),
    host=_adam,
    device=_MOMENTS
    + """
        param = keep * param + minus_eta * (alpha_t / (sqrtf(v) + eps) * m);
    """,
)


def _amsgrad(p, g, states, numbers, a, b):
    m, v, vhat = states
    one_minus_beta1, one_minus_beta2, alpha_t, eps, keep, minus_eta = numbers
    _moments(g, m, v, one_minus_beta1, one_minus_beta2, a)
    np.maximum(vhat, v, out=vhat)
    _rate(vhat, alpha_t, eps, a)
    _step(p, m, a, keep, minus_eta)


# Reddi et al. 2018, "On the Convergence of Adam and Beyond".
AMSGRAD = Expression(
    states=("m", "v", "vhat"),
    hyperparameters=_HYPERPARAMETERS,
    numbers=_NUMBERS,
    not_flushed=("eps",),
    host=_amsgrad,
    device=_MOMENTS
    + """
        vhat = v > vhat || v != v ? v : vhat;
        param = keep * param + minus_eta * (alpha_t / (sqrtf(vhat) + eps) * m);
    """,
)


def _adabound(p, g, states, numbers, a, b):
    m, v = states
    one_minus_beta1, one_minus_beta2, alpha_t, eps, keep, minus_eta, lower, upper = numbers
    _moments(g, m, v, one_minus_beta1, one_minus_beta2, a)
    _rate(v, alpha_t, eps, a)
    np.clip(a, lower, upper, out=a)
    _step(p, m, a, keep, minus_eta)


# initial_alpha belongs to the rule: final_lr follows what a schedule does to alpha.
_BOUND_HYPERPARAMETERS = (*_HYPERPARAMETERS, "final_lr", "gamma", "initial_alpha")
_BOUND_NUMBERS = {
    **_NUMBERS,
    "lower": "final_lr * alpha / initial_alpha * (1.0 - 1.0 / (gamma * t + 1))",
    "upper": "final_lr * alpha / initial_alpha * (1.0 + 1.0 / (gamma * t))",
}
_BOUND_STEP = """
        float rate = alpha_t / (sqrtf({second}) + eps);
        rate = rate < lower ? lower : rate > upper ? upper : rate;
        param = keep * param + minus_eta * (rate * m);
"""

# Luo et al. 2019, "Adaptive Gradient Methods with Dynamic Bound of Learning Rate".
ADABOUND = Expression(
    states=("m", "v"),
    hyperparameters=_BOUND_HYPERPARAMETERS,
    numbers=_BOUND_NUMBERS,
    not_flushed=("eps",),
    host=_adabound,
    device=_MOMENTS + _BOUND_STEP.format(second="v"),
)


def _amsbound(p, g, states, numbers, a, b):
    m, v, vhat = states
    one_minus_beta1, one_minus_beta2, alpha_t, eps, keep, minus_eta, lower, upper = numbers
    _moments(g, m, v, one_minus_beta1, one_minus_beta2, a)
    np.maximum(vhat, v, out=vhat)
    _rate(vhat, alpha_t, eps, a)
    np.clip(a, lower, upper, out=a)
    _step(p, m, a, keep, minus_eta)


AMSBOUND = Expression(
    states=("m", "v", "vhat"),
    hyperparameters=_BOUND_HYPERPARAMETERS,
    numbers=_BOUND_NUMBERS,
    not_flushed=("eps",),
    host=_amsbound,
    device=_MOMENTS
    + """
        vhat = v > vhat || v != v ? v : vhat;
"""
    + _BOUND_STEP.format(second="vhat"),
)
