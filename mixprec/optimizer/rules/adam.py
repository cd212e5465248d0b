"""Adam and its variants, which correct the bias of their running averages."""

from mixprec.optimizer.rules.formulas import RuleFormula

# Running averages of a gradient and of its square, as LAMB begins, too.
MOMENTS = """
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
"""
_HYPERPARAMETERS = ("alpha", "beta1", "beta2", "eps", "eta", "weight_decay_rate")
_NUMBERS = {
    "one_minus_beta1": "1.0 - beta1",
    "one_minus_beta2": "1.0 - beta2",
    "alpha_t": "alpha * sqrt(1.0 - pow(beta2, t)) / (1.0 - pow(beta1, t))",
    "eps": "eps",
    "keep": "1.0 - eta * weight_decay_rate",
    "minus_eta": "-eta",
}
_LARGEST = """
        vhat = v > vhat || v != v ? v : vhat;
"""
_STEP = """
        param = keep * param + minus_eta * (alpha_t / (sqrtf({second}) + eps) * m);
"""
_PLAIN = {"hyperparameters": _HYPERPARAMETERS, "numbers": _NUMBERS, "not_flushed": ("eps",)}

# Kingma and Ba 2015, "Adam"; weight_decay_rate: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
ADAM = RuleFormula(states=("m", "v"), device=MOMENTS + _STEP.format(second="v"), **_PLAIN)

# Reddi et al. 2018, "On the Convergence of Adam and Beyond".
AMSGRAD = RuleFormula(states=("m", "v", "vhat"), device=MOMENTS + _LARGEST + _STEP.format(second="vhat"), **_PLAIN)

_BOUND_STEP = """
        float rate = alpha_t / (sqrtf({second}) + eps);
        rate = rate < lower || lower != lower ? lower : rate;
        rate = rate > upper || upper != upper ? upper : rate;
        param = keep * param + minus_eta * (rate * m);
"""
_BOUND = {
    **_PLAIN,
    # initial_alpha belongs to the rule: final_lr follows what a schedule does to alpha.
    "hyperparameters": (*_HYPERPARAMETERS, "final_lr", "gamma", "initial_alpha"),
    "numbers": {
        **_NUMBERS,
        "lower": "final_lr * alpha / initial_alpha * (1.0 - 1.0 / (gamma * t + 1))",
        "upper": "final_lr * alpha / initial_alpha * (1.0 + 1.0 / (gamma * t))",
    },
}

# Luo et al. 2019, "Adaptive Gradient Methods with Dynamic Bound of Learning Rate".
ADABOUND = RuleFormula(states=("m", "v"), device=MOMENTS + _BOUND_STEP.format(second="v"), **_BOUND)
AMSBOUND = RuleFormula(
    states=("m", "v", "vhat"), device=MOMENTS + _LARGEST + _BOUND_STEP.format(second="vhat"), **_BOUND
)
