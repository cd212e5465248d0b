"""Chainer's hooks."""

from chainer import optimizer_hooks
from chainer.optimizer_hooks.gradient_noise import exponential_decay_noise

from mixprec.optimizer.rules.formulas import HookFormula, numbers

HookFormula(hook=optimizer_hooks.WeightDecay, numbers=numbers("rate"), device="grad += rate * param;")

HookFormula(
    hook=optimizer_hooks.Lasso,
    numbers=numbers("rate"),
    device="grad += rate * (param > 0 ? 1.0f : param < 0 ? -1.0f : param == 0 ? 0.0f : param);",
)

HookFormula(
    hook=optimizer_hooks.GradientHardClipping,
    numbers=numbers("lower_bound", "upper_bound"),
    device="""
        grad = grad < lower_bound ? lower_bound : grad;
        grad = grad > upper_bound ? upper_bound : grad;
    """,
)

HookFormula(
    hook=optimizer_hooks.GradientClipping,
    numbers=numbers("threshold"),
    norms="all",
    device="""
        const float rate = threshold / grad_norm;
        grad *= rate > 1 ? 1.0f : rate;
    """,
)

# You et al. 2017, "Large Batch Training of Convolutional Networks".
HookFormula(
    hook=optimizer_hooks.GradientLARS,
    numbers=numbers("threshold", "weight_decay", "eps"),
    norms="each",
    device="""
        grad += weight_decay * param;
        grad *= param_norm > threshold ? param_norm / (eps + grad_norm + weight_decay * param_norm) : 1.0f;
    """,
)

# Neelakantan et al. 2015, "Adding Gradient Noise Improves Learning for Very Deep Networks".
HookFormula(
    hook=optimizer_hooks.GradientNoise,
    numbers=numbers(std="sqrt(eta / pow(1 + t, 0.55))"),
    noise=True,
    holds_for=lambda hook: hook.noise_func is exponential_decay_noise,
    device="grad += std * noise;",
)
