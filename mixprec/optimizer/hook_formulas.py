"""Chainer's own hooks as part of the batched update: a formula for NumPy and one for CUDA, side by side.

The plan of a step looks hooks up here; one that is not here makes Chainer's own loop run.
"""

import dataclasses
import numbers
from collections.abc import Callable

import numpy as np
from chainer import optimizer_hooks
from chainer.optimizer_hooks.gradient_noise import exponential_decay_noise

from mixprec.optimizer.no_decay import DecayOfSome


@dataclasses.dataclass(frozen=True)
class HookFormula:
    """What a hook does to one element of a gradient.

    Attributes:
        hyperparameters: names of the attributes of the hook that the formulas may use, all numbers.
        numbers: formulas of the float32 numbers of a step, in Python and in CUDA C++; ``t`` is ``rule.t`` as the hook
            sees it: before the step at optimizer level, counting it at rule level.
        host: ``host(p, g, numbers, a)`` changes the gradient ``g`` in place; ``a`` is scratch. Operations are those of
            the hook on NumPy. ``None`` if it takes more than one element to know: NumPy then runs the hook itself.
        device: statements in CUDA C++ on ``param``, ``grad`` and the numbers by their names; with :attr:`norms` also on
            ``param_norm`` and ``grad_norm``; with :attr:`noise` on ``noise``.
        norms: ``"each"`` for the L2 norms of every parameter and its gradient, ``"all"`` for that of all gradients
            (``grad_norm`` only), as they are before the hook; or ``None``.
        noise: whether the hook needs a standard normal random number for each element.
    """

    hyperparameters: tuple[str, ...]
    numbers: dict[str, str]
    host: Callable | None
    device: str
    norms: str | None = None
    noise: bool = False

    def hyperparameters_of(self, hook):
        """Returns the values of :attr:`hyperparameters` of a hook, as a tuple of floats."""
        return tuple(float(getattr(hook, name)) for name in self.hyperparameters)


def _weight_decay(p, g, numbers, a):
    (rate,) = numbers
    np.multiply(p, rate, out=a)
    np.add(g, a, out=g)


WEIGHT_DECAY = HookFormula(
    hyperparameters=("rate",),
    numbers={"rate": "rate"},
    host=_weight_decay,
    device="""
        grad += rate * param;
    """,
)


def _lasso(p, g, numbers, a):
    (rate,) = numbers
    np.sign(p, out=a)
    np.multiply(a, rate, out=a)
    np.add(g, a, out=g)


LASSO = HookFormula(
    hyperparameters=("rate",),
    numbers={"rate": "rate"},
    host=_lasso,
    device="""
        grad += rate * (param > 0 ? 1.0f : param < 0 ? -1.0f : param);
    """,
)


def _hard_clipping(p, g, numbers, a):
    lower_bound, upper_bound = numbers
    np.clip(g, lower_bound, upper_bound, out=g)


HARD_CLIPPING = HookFormula(
    hyperparameters=("lower_bound", "upper_bound"),
    numbers={"lower_bound": "lower_bound", "upper_bound": "upper_bound"},
    host=_hard_clipping,
    device="""
        grad = grad < lower_bound ? lower_bound : grad;
        grad = grad > upper_bound ? upper_bound : grad;
    """,
)

CLIPPING = HookFormula(
    hyperparameters=("threshold",),
    numbers={"threshold": "threshold"},
    host=None,
    norms="all",
    device="""
        const float rate = threshold / grad_norm;
        grad *= rate > 1 ? 1.0f : rate;
    """,
)

# You et al. 2017, "Large Batch Training of Convolutional Networks".
LARS_HOOK = HookFormula(
    hyperparameters=("threshold", "weight_decay", "eps"),
    numbers={"threshold": "threshold", "weight_decay": "weight_decay", "eps": "eps"},
    host=None,
    norms="each",
    device="""
        grad += weight_decay * param;
        grad *= param_norm > threshold ? param_norm / (eps + grad_norm + weight_decay * param_norm) : 1.0f;
    """,
)

# Neelakantan et al. 2015, "Adding Gradient Noise Improves Learning for Very Deep Networks".
NOISE = HookFormula(
    hyperparameters=("eta",),
    numbers={"std": "sqrt(eta / pow(1 + t, 0.55))"},
    host=None,
    noise=True,
    device="""
        grad += std * noise;
    """,
)

_HOOK_FORMULAS = {
    optimizer_hooks.WeightDecay: WEIGHT_DECAY,
    optimizer_hooks.Lasso: LASSO,
    optimizer_hooks.GradientHardClipping: HARD_CLIPPING,
    optimizer_hooks.GradientClipping: CLIPPING,
    optimizer_hooks.GradientLARS: LARS_HOOK,
    optimizer_hooks.GradientNoise: NOISE,
}


def hook_formula_of(hook):
    """Returns the :class:`HookFormula` of a hook; ``None`` if it is unknown, or has other things than numbers."""
    if isinstance(hook, DecayOfSome):
        hook = hook.hook
    formula = _HOOK_FORMULAS.get(type(hook))
    if formula is None or (formula is NOISE and hook.noise_func is not exponential_decay_noise):
        return None
    is_known = all(isinstance(getattr(hook, name), numbers.Real) for name in formula.hyperparameters)
    return formula if is_known else None
