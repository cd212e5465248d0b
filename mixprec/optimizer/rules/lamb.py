"""LAMB: Adam's steps, scaled to the norm of their parameter."""

import math
from dataclasses import dataclass

import numpy as np

from mixprec.optimizer.rules.adam import MOMENTS
from mixprec.optimizer.rules.formulas import RuleFormula, numbers
from mixprec.optimizer.rules.norms import norm
from mixprec.optimizer.rules.own_rules import POSITIVE, SHARE, OwnOptimizer, OwnRule, hyperparameter


class LAMBRule(OwnRule):
    """Update rule of :class:`LAMB`."""

    def update_on_cpu(self, p, grad):
        """The formula in NumPy."""
        hp, m, v = self.hyperparam, self.state["m"], self.state["v"]
        fix1, fix2 = (1.0 - math.pow(beta, self.t) for beta in (hp.beta1, hp.beta2))
        m += (1.0 - hp.beta1) * (grad - m)
        v += (1.0 - hp.beta2) * (grad * grad - v)
        root = np.sqrt(v / fix2)
        root += hp.eps
        step = m / fix1
        step /= root
        step += hp.weight_decay * p
        trust = 1.0
        if hp.adapt and (param_norm := norm(p)) > 0 and (step_norm := norm(step)) > 0:
            trust = param_norm / step_norm
        step *= hp.lr * trust
        p -= step


@dataclass(eq=False, repr=False)
class LAMB(OwnOptimizer[LAMBRule]):
    """Layer-wise adaptive moments.

    See: You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"
    <https://arxiv.org/abs/1904.00962>, algorithm 2. Step :math:`t` of parameter :math:`w` with gradient :math:`g` is

    .. math::

        m &\\leftarrow \\beta_1 m + (1 - \\beta_1) g, \\\\
        v &\\leftarrow \\beta_2 v + (1 - \\beta_2) g^2, \\\\
        u &= \\frac{m / (1 - \\beta_1^t)}{\\sqrt{v / (1 - \\beta_2^t)} + \\epsilon} + \\lambda w, \\\\
        w &\\leftarrow w - \\gamma \\frac{\\|w\\|}{\\|u\\|} u

    with a trust ratio :math:`\\|w\\| / \\|u\\|` of 1 if either norm is 0. The paper's :math:`\\phi` is the identity.

    Args:
        lr: learning rate :math:`\\gamma`.
        beta1: :math:`\\beta_1`.
        beta2: :math:`\\beta_2`.
        eps: :math:`\\epsilon`.
        weight_decay: :math:`\\lambda`.
        adapt: whether to use the trust ratio; otherwise it is 1, and the rule equals AdamW. Meant for the
            ``hyperparam`` of the rules of biases and normalizations.

    Raises:
        TypeError: ``adapt`` is not a bool.
        ValueError: another argument is not a number, or out of its range.

    Example:
        >>> import chainer.links as L
        >>> import mixprec
        >>> model = L.Linear(3, 2)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(mixprec.LAMB(lr=0.002, weight_decay=0.01)).setup(model)
        >>> optimizer.lr = 0.001  # as a schedule does
        >>> model.W.update_rule.hyperparam.lr
        0.001
    """

    lr: float = hyperparameter(0.001)
    beta1: float = hyperparameter(0.9, *SHARE)
    beta2: float = hyperparameter(0.999, *SHARE)
    eps: float = hyperparameter(1e-6, *POSITIVE)
    weight_decay: float = hyperparameter(0.0)
    adapt: bool = hyperparameter(True)


_STEP = f"""{MOMENTS}
        const float step = m / fix1 / (sqrtf(v / fix2) + eps) + weight_decay * param;
"""


def _declare(name, adapt, **statements):
    RuleFormula(
        name=name,
        rule=LAMBRule,
        switches={"adapt": adapt},
        states=("m", "v"),
        numbers=numbers(
            "lr",
            "eps",
            "weight_decay",
            one_minus_beta1="1.0 - beta1",
            one_minus_beta2="1.0 - beta2",
            fix1="1.0 - pow(beta1, t)",
            fix2="1.0 - pow(beta2, t)",
        ),
        **statements,
    )


_ADAPTED = "param -= lr * (param_norm > 0 && step_norm > 0 ? param_norm / step_norm : 1.0f) * step;"
_declare("LambAdapted", True, step=_STEP, device=_ADAPTED)
_declare("LambUnadapted", False, device=f"{_STEP}        param -= lr * step;")
