"""Learning rates from running sums or averages of squared gradients, without bias correction."""

from mixprec.optimizer.rules.formulas import RuleFormula

# Duchi et al. 2011, "Adaptive Subgradient Methods".
ADA_GRAD = RuleFormula(
    states=("h",),
    hyperparameters=("lr", "eps"),
    numbers={"lr": "lr", "eps": "eps"},
    device="""
        h += grad * grad;
        param -= lr * grad / (sqrtf(h) + eps);
    """,
)


# Zeiler 2012, "ADADELTA".
ADA_DELTA = RuleFormula(
    states=("msg", "msdx"),
    hyperparameters=("rho", "eps"),
    numbers={"rho": "rho", "one_minus_rho": "1 - rho", "eps": "eps"},
    device="""
        msg = rho * msg + one_minus_rho * grad * grad;
        const float dx = sqrtf((msdx + eps) / (msg + eps)) * grad;
        msdx = rho * msdx + one_minus_rho * dx * dx;
        param -= dx;
    """,
)


_RMSPROP = {
    "states": ("ms",),
    "hyperparameters": ("lr", "alpha", "eps"),
    "numbers": {"lr": "lr", "alpha": "alpha", "one_minus_alpha": "1 - alpha", "eps": "eps"},
    "not_flushed": ("eps",),
}

# Tieleman and Hinton 2012, lecture 6.5 of "Neural Networks for Machine Learning".
RMSPROP = RuleFormula(
    **_RMSPROP,
    device="""
        ms = alpha * ms + one_minus_alpha * grad * grad;
        param -= lr * grad / (sqrtf(ms) + eps);
    """,
)

RMSPROP_EPS_INSIDE_SQRT = RuleFormula(
    **_RMSPROP,
    device="""
        ms = alpha * ms + one_minus_alpha * grad * grad;
        param -= lr * grad / sqrtf(ms + eps);
    """,
)


# Graves 2013, "Generating Sequences With Recurrent Neural Networks", equations (38) to (42).
RMSPROP_GRAVES = RuleFormula(
    states=("n", "g", "delta"),
    hyperparameters=("lr", "alpha", "momentum", "eps"),
    numbers={"lr": "lr", "alpha": "alpha", "one_minus_alpha": "1 - alpha", "momentum": "momentum", "eps": "eps"},
    device="""
        n = alpha * n + one_minus_alpha * grad * grad;
        g = alpha * g + one_minus_alpha * grad;
        delta = momentum * delta - lr * grad / sqrtf(n - g * g + eps);
        param += delta;
    """,
)
