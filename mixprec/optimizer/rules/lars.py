"""LARS: a learning rate for each parameter, from the norms of the parameter and of its gradient."""

from dataclasses import dataclass
from typing import ClassVar

from mixprec.optimizer.rules.formulas import RuleFormula, numbers
from mixprec.optimizer.rules.norms import norm
from mixprec.optimizer.rules.own_rules import POSITIVE, SHARE, OwnOptimizer, OwnRule, hyperparameter


class LARSRule(OwnRule):
    """Update rule of :class:`LARS`."""

    def update_on_cpu(self, p, grad):
        """The formula in NumPy."""
        hp, v = self.hyperparam, self.state["v"]
        trust = 1.0
        if hp.adapt and (param_norm := norm(p)) > 0 and (grad_norm := norm(grad)) > 0:
            trust = hp.trust_coefficient * param_norm / (grad_norm + hp.weight_decay * param_norm + hp.eps)
        step = hp.weight_decay * p
        step += grad
        step *= hp.lr * trust
        v *= hp.momentum
        v += step
        p -= v


@dataclass(eq=False, repr=False)
class LARS(OwnOptimizer[LARSRule]):
    """Layer-wise adaptive rate scaling with momentum.

    See: You et al. 2017, "Large Batch Training of Convolutional Networks" <https://arxiv.org/abs/1708.03888>. A step
    of parameter :math:`w` with gradient :math:`g` is

    .. math::

        \\lambda &= \\eta \\frac{\\|w\\|}{\\|g\\| + \\beta \\|w\\| + \\epsilon}, \\\\
        v &\\leftarrow m v + \\gamma \\lambda (g + \\beta w), \\\\
        w &\\leftarrow w - v

    with :math:`\\lambda = 1` if either norm is 0. Unlike the hook :class:`chainer.optimizer_hooks.GradientLARS`, the
    rule has a trust coefficient, a weight decay that can be set for each parameter, and parameters without a trust
    ratio.

    Args:
        lr: learning rate :math:`\\gamma`.
        momentum: :math:`m`.
        weight_decay: :math:`\\beta`.
        trust_coefficient: :math:`\\eta`.
        eps: :math:`\\epsilon`.
        adapt: whether to use the trust ratio; otherwise :math:`\\lambda = 1`. Meant for the ``hyperparam`` of the rules
            of biases and normalizations.

    Raises:
        TypeError: ``adapt`` is not a bool.
        ValueError: another argument is not a number, or out of its range.

    Example:
        >>> import chainer.links as L
        >>> import mixprec
        >>> model = L.BatchNormalization(4)
        >>> inner = mixprec.LARS(lr=2.0, weight_decay=5e-5)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, no_decay="ndim <= 1").setup(model)
        >>> model.gamma.update_rule.hyperparam.adapt  # no trust ratio for scales and shifts of normalizations
        False
    """

    keys: ClassVar = ("momentum", "trust_coefficient")

    lr: float = hyperparameter(1.0)
    momentum: float = hyperparameter(0.9, *SHARE)
    weight_decay: float = hyperparameter(0.0)
    trust_coefficient: float = hyperparameter(0.001, *POSITIVE)
    eps: float = hyperparameter(1e-9, *POSITIVE)
    adapt: bool = hyperparameter(True)


RuleFormula(
    name="LarsAdapted",
    rule=LARSRule,
    switches={"adapt": True},
    states=("v",),
    numbers=numbers("lr", "momentum", "weight_decay", "trust_coefficient", "eps"),
    norms=True,
    device="""
        const float trust = param_norm > 0 && grad_norm > 0
            ? trust_coefficient * param_norm / (grad_norm + weight_decay * param_norm + eps) : 1.0f;
        v = momentum * v + lr * trust * (grad + weight_decay * param);
        param -= v;
    """,
)

RuleFormula(
    name="LarsUnadapted",
    rule=LARSRule,
    switches={"adapt": False},
    states=("v",),
    numbers=numbers("lr", "momentum", "weight_decay"),
    device="""
        v = momentum * v + lr * (grad + weight_decay * param);
        param -= v;
    """,
)
