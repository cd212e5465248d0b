"""Lion: steps of constant size, from the sign of a running average of gradients."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mixprec.optimizer.rules.formulas import RuleFormula, numbers
from mixprec.optimizer.rules.own_rules import SHARE, OwnOptimizer, OwnRule, hyperparameter


class LionRule(OwnRule):
    """Update rule of :class:`Lion`."""

    def update_on_cpu(self, p, grad):
        """The formula in NumPy."""
        hp, m = self.hyperparam, self.state["m"]
        direction = m * hp.beta1
        direction += grad * (1.0 - hp.beta1)
        step = np.sign(direction)
        step *= hp.lr
        p *= 1.0 - hp.lr * hp.weight_decay
        p -= step
        m *= hp.beta2
        m += grad * (1.0 - hp.beta2)


@dataclass(eq=False, repr=False)
class Lion(OwnOptimizer[LionRule]):
    """The sign of a running average of gradients, with decoupled weight decay.

    See: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms" <https://arxiv.org/abs/2302.06675>,
    algorithm 2. A step of parameter :math:`w` with gradient :math:`g` is

    .. math::

        w &\\leftarrow w - \\gamma (\\mathrm{sign}(\\beta_1 m + (1 - \\beta_1) g) + \\lambda w), \\\\
        m &\\leftarrow \\beta_2 m + (1 - \\beta_2) g

    Each element moves by :math:`\\gamma`: the paper recommends a third to a tenth of AdamW's learning rate, and three
    to ten times its weight decay. There is one state, where Adam has two.

    Args:
        lr: learning rate :math:`\\gamma`.
        beta1: :math:`\\beta_1`, for the average whose sign a step takes.
        beta2: :math:`\\beta_2`, for the average that is kept.
        weight_decay: :math:`\\lambda`.

    Raises:
        ValueError: an argument is not a number, or out of its range.

    Example:
        >>> import chainer.links as L
        >>> import mixprec
        >>> inner = mixprec.Lion(lr=1e-4, weight_decay=0.1)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, no_decay="ndim <= 1").setup(L.Linear(3, 2))
        >>> optimizer.target.W.update_rule.hyperparam.beta2
        0.99
    """

    is_decoupled: ClassVar = True

    lr: float = hyperparameter(1e-4)
    beta1: float = hyperparameter(0.9, *SHARE)
    beta2: float = hyperparameter(0.99, *SHARE)
    weight_decay: float = hyperparameter(0.0)


RuleFormula(
    name="Lion",
    rule=LionRule,
    states=("m",),
    numbers=numbers(
        "lr",
        "beta1",
        "beta2",
        one_minus_beta1="1.0 - beta1",
        one_minus_beta2="1.0 - beta2",
        keep="1.0 - lr * weight_decay",
    ),
    # As in NumPy: a zero of either sign gives 0, NaN gives NaN.
    device="""
        const float direction = beta1 * m + one_minus_beta1 * grad;
        param = keep * param - lr * (direction > 0 ? 1.0f : direction < 0 ? -1.0f : direction == 0 ? 0.0f : direction);
        m = beta2 * m + one_minus_beta2 * grad;
    """,
)
