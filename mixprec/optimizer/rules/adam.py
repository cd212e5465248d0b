"""Adam and its variants, which correct the bias of their running averages."""

from chainer.optimizers.adam import AdamRule

from mixprec.optimizer.rules.formulas import RuleFormula, numbers
from mixprec.optimizer.rules.offers import offer

# Running averages of a gradient and of its square, as LAMB begins, too.
MOMENTS = """
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
"""
_NUMBERS = numbers(
    "eps",
    one_minus_beta1="1.0 - beta1",
    one_minus_beta2="1.0 - beta2",
    alpha_t="alpha * sqrt(1.0 - pow(beta2, t)) / (1.0 - pow(beta1, t))",
    keep="1.0 - eta * weight_decay_rate",
    minus_eta="-eta",
)
_LARGEST = """
        vhat = v > vhat || v != v ? v : vhat;
"""
_STEP = """
        param = keep * param + minus_eta * (alpha_t / (sqrtf({second}) + eps) * m);
"""
_BOUND_NUMBERS = numbers(
    **_NUMBERS,
    # initial_alpha belongs to the rule: a schedule of alpha also scales final_lr.
    lower="final_lr * alpha / initial_alpha * (1.0 - 1.0 / (gamma * t + 1))",
    upper="final_lr * alpha / initial_alpha * (1.0 + 1.0 / (gamma * t))",
)
_BOUND_STEP = """
        float rate = alpha_t / (sqrtf({second}) + eps);
        rate = rate < lower || lower != lower ? lower : rate;
        rate = rate > upper || upper != upper ? upper : rate;
        param = keep * param + minus_eta * (rate * m);
"""


def _declare(name, *, amsgrad=False, adabound=False):
    step = (_BOUND_STEP if adabound else _STEP).format(second="vhat" if amsgrad else "v")
    RuleFormula(
        name=name,
        rule=AdamRule,
        switches={"amsgrad": amsgrad, "adabound": adabound},
        states=("m", "v", "vhat") if amsgrad else ("m", "v"),
        numbers=_BOUND_NUMBERS if adabound else _NUMBERS,
        not_flushed=("eps",),
        device=MOMENTS + (_LARGEST if amsgrad else "") + step,
    )


# Kingma and Ba 2015, "Adam"; weight_decay_rate: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
_declare("Adam")
offer("Adam", rate="alpha")
# Chainer multiplies weight decay by eta, and not by alpha. With an alpha of 1, eta is the lr of torch.optim.AdamW.
offer("AdamW", rate="eta", decay="weight_decay_rate", fixed={"alpha": 1.0}, is_decoupled=True)

# Reddi et al. 2018, "On the Convergence of Adam and Beyond".
_declare("AmsGrad", amsgrad=True)
offer("AMSGrad", rate="alpha")

# Luo et al. 2019, "Adaptive Gradient Methods with Dynamic Bound of Learning Rate".
_declare("AdaBound", adabound=True)
offer("AdaBound", rate="alpha")
_declare("AmsBound", amsgrad=True, adabound=True)
offer("AMSBound", rate="alpha")
