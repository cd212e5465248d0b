"""Chainer's own hooks as part of the batched update: once for NumPy, once for CUDA, side by side."""

import dataclasses
import numbers
from collections.abc import Callable

import numpy as np
from chainer import optimizer_hooks
from chainer.optimizer_hooks.gradient_noise import exponential_decay_noise

from mixprec.optimizer.no_decay import DecayOfSome


@dataclasses.dataclass(frozen=True)
class Fold:
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


WEIGHT_DECAY = Fold(
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


LASSO = Fold(
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


HARD_CLIPPING = Fold(
    hyperparameters=("lower_bound", "upper_bound"),
    numbers={"lower_bound": "lower_bound", "upper_bound": "upper_bound"},
    host=_hard_clipping,
    device="""
        grad = grad < lower_bound ? lower_bound : grad;
        grad = grad > upper_bound ? upper_bound : grad;
    """,
)

CLIPPING = Fold(
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
LARS_HOOK = Fold(
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
NOISE = Fold(
    hyperparameters=("eta",),
    numbers={"std": "sqrt(eta / pow(1 + t, 0.55))"},
    host=None,
    noise=True,
    device="""
        grad += std * noise;
    """,
)

_FOLDS = {
    optimizer_hooks.WeightDecay: WEIGHT_DECAY,
    optimizer_hooks.Lasso: LASSO,
    optimizer_hooks.GradientHardClipping: HARD_CLIPPING,
    optimizer_hooks.GradientClipping: CLIPPING,
    optimizer_hooks.GradientLARS: LARS_HOOK,
    optimizer_hooks.GradientNoise: NOISE,
}


def fold_of(hook):
    """Returns the :class:`Fold` of a hook; ``None`` for an unknown one, or one with something else than numbers."""
    if isinstance(hook, DecayOfSome):
        hook = hook.hook
    fold = _FOLDS.get(type(hook))
    if fold is NOISE and hook.noise_func is not exponential_decay_noise:
        return None
    if fold is not None and any(not isinstance(getattr(hook, name), numbers.Real) for name in fold.hyperparameters):
        return None
    return fold
