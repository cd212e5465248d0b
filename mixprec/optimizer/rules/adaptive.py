"""Learning rates from running sums or averages of squared gradients, without bias correction."""

import numpy as np

from mixprec.optimizer.rules.formulas import RuleFormula


def _ada_grad(p, g, states, numbers, a, b):
    (h,) = states
    lr, eps = numbers
    np.multiply(g, g, out=a)
    np.add(h, a, out=h)
    np.sqrt(h, out=a)
    np.add(a, eps, out=a)
    np.multiply(g, lr, out=g)
    np.divide(g, a, out=g)
    np.subtract(p, g, out=p)


# Duchi et al. 2011, "Adaptive Subgradient Methods".
ADA_GRAD = RuleFormula(
    states=("h",),
    hyperparameters=("lr", "eps"),
    numbers={"lr": "lr", "eps": "eps"},
    host=_ada_grad,
    device="""
        h += grad * grad;
        param -= lr * grad / (sqrtf(h) + eps);
    """,
)


def _ada_delta(p, g, states, numbers, a, b):
    msg, msdx = states
    rho, one_minus_rho, eps = numbers
    np.multiply(g, one_minus_rho, out=a)
    np.multiply(a, g, out=a)
    np.multiply(msg, rho, out=msg)
    np.add(msg, a, out=msg)
    np.add(msdx, eps, out=a)
    np.add(msg, eps, out=b)
    np.divide(a, b, out=a)
    np.sqrt(a, out=a)
    np.multiply(a, g, out=g)  # the step
    np.multiply(g, one_minus_rho, out=a)
    np.multiply(a, g, out=a)
    np.multiply(msdx, rho, out=msdx)
    np.add(msdx, a, out=msdx)
    np.subtract(p, g, out=p)


# Zeiler 2012, "ADADELTA".
ADA_DELTA = RuleFormula(
    states=("msg", "msdx"),
    hyperparameters=("rho", "eps"),
    numbers={"rho": "rho", "one_minus_rho": "1 - rho", "eps": "eps"},
    host=_ada_delta,
    device="""
        msg = rho * msg + one_minus_rho * grad * grad;
        const float dx = sqrtf((msdx + eps) / (msg + eps)) * grad;
        msdx = rho * msdx + one_minus_rho * dx * dx;
        param -= dx;
    """,
)


def _mean_square(g, ms, alpha, one_minus_alpha, a):
    np.multiply(ms, alpha, out=ms)
    np.multiply(g, one_minus_alpha, out=a)
    np.multiply(a, g, out=a)
    np.add(ms, a, out=ms)


def _rmsprop(p, g, states, numbers, a, b):
    (ms,) = states
    lr, alpha, one_minus_alpha, eps = numbers
    _mean_square(g, ms, alpha, one_minus_alpha, a)
    np.sqrt(ms, out=a)
    np.add(a, eps, out=a)
    np.multiply(g, lr, out=g)
    np.divide(g, a, out=g)
    np.subtract(p, g, out=p)


def _rmsprop_eps_inside_sqrt(p, g, states, numbers, a, b):
    (ms,) = states
    lr, alpha, one_minus_alpha, eps = numbers
    _mean_square(g, ms, alpha, one_minus_alpha, a)
    np.add(ms, eps, out=a)
    np.sqrt(a, out=a)
    np.multiply(g, lr, out=g)
    np.divide(g, a, out=g)
    np.subtract(p, g, out=p)


_RMSPROP = {
    "states": ("ms",),
    "hyperparameters": ("lr", "alpha", "eps"),
    "numbers": {"lr": "lr", "alpha": "alpha", "one_minus_alpha": "1 - alpha", "eps": "eps"},
    "not_flushed": ("eps",),
}

# Tieleman and Hinton 2012, lecture 6.5 of "Neural Networks for Machine Learning".
RMSPROP = RuleFormula(
    **_RMSPROP,
    host=_rmsprop,
    device="""
        ms = alpha * ms + one_minus_alpha * grad * grad;
        param -= lr * grad / (sqrtf(ms) + eps);
    """,
)

RMSPROP_EPS_INSIDE_SQRT = RuleFormula(
    **_RMSPROP,
    host=_rmsprop_eps_inside_sqrt,
    device="""
        ms = alpha * ms + one_minus_alpha * grad * grad;
        param -= lr * grad / sqrtf(ms + eps);
    """,
)


def _rmsprop_graves(p, g, states, numbers, a, b):
    mean_square, mean, delta = states
    lr, alpha, one_minus_alpha, momentum, eps = numbers
    _mean_square(g, mean_square, alpha, one_minus_alpha, a)
    np.multiply(mean, alpha, out=mean)
    np.multiply(g, one_minus_alpha, out=a)
    np.add(mean, a, out=mean)
    np.multiply(mean, mean, out=a)
    np.subtract(mean_square, a, out=a)
    np.add(a, eps, out=a)
    np.sqrt(a, out=a)
    np.multiply(g, lr, out=g)
    np.divide(g, a, out=g)
    np.multiply(delta, momentum, out=delta)
    np.subtract(delta, g, out=delta)
    np.add(p, delta, out=p)


# Graves 2013, "Generating Sequences With Recurrent Neural Networks", equations (38) to (42).
RMSPROP_GRAVES = RuleFormula(
    states=("n", "g", "delta"),
    hyperparameters=("lr", "alpha", "momentum", "eps"),
    numbers={"lr": "lr", "alpha": "alpha", "one_minus_alpha": "1 - alpha", "momentum": "momentum", "eps": "eps"},
    host=_rmsprop_graves,
    device="""
        n = alpha * n + one_minus_alpha * grad * grad;
        g = alpha * g + one_minus_alpha * grad;
        delta = momentum * delta - lr * grad / sqrtf(n - g * g + eps);
        param += delta;
    """,
)
