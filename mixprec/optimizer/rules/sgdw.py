"""SGD with momentum and decoupled weight decay."""

from dataclasses import dataclass
from typing import ClassVar

from mixprec.optimizer.rules.formulas import RuleFormula, numbers
from mixprec.optimizer.rules.own_rules import SHARE, OwnOptimizer, OwnRule, hyperparameter


class SGDWRule(OwnRule):
    """Update rule of :class:`SGDW`."""

    def update_on_cpu(self, p, grad):
        """The formula in NumPy."""
        hp, v = self.hyperparam, self.state["v"]
        p *= 1.0 - hp.lr * hp.weight_decay
        v *= hp.momentum
        v += grad
        if hp.nesterov:
            step = v * hp.momentum
            step += grad
            step *= hp.lr
        else:
            step = v * hp.lr
        p -= step


@dataclass(eq=False, repr=False)
class SGDW(OwnOptimizer[SGDWRule]):
    """SGD with momentum, optionally Nesterov's, and weight decay that is not a part of the gradient.

    See: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 1
    <https://arxiv.org/abs/1711.05101>. As in timm's ``SGDW``, a step of parameter :math:`w` with gradient :math:`g` is

    .. math::

        w &\\leftarrow (1 - \\gamma \\beta) w, \\\\
        v &\\leftarrow m v + g, \\\\
        w &\\leftarrow w - \\gamma v

    with :math:`g + m v` for :math:`v` in the last line if ``nesterov``, as in ``torch.optim.SGD``. The decay of a step
    is proportional to the learning rate, and passes neither through the momentum nor through hooks.

    Args:
        lr: learning rate :math:`\\gamma`.
        momentum: :math:`m`.
        weight_decay: :math:`\\beta`.
        nesterov: whether to use Nesterov momentum.

    Raises:
        TypeError: ``nesterov`` is not a bool.
        ValueError: another argument is not a number, or out of its range.

    Example:
        >>> import chainer.links as L
        >>> import mixprec
        >>> inner = mixprec.SGDW(lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, no_decay="ndim <= 1").setup(L.Linear(3, 2))
        >>> optimizer.target.b.update_rule.hyperparam.weight_decay
        0.0
    """

    keys: ClassVar = ("momentum", "nesterov")
    is_decoupled: ClassVar = True

    lr: float = hyperparameter(0.01)
    momentum: float = hyperparameter(0.9, *SHARE)
    weight_decay: float = hyperparameter(0.0)
    nesterov: bool = hyperparameter(False)


def _declare(name, nesterov, direction):
    RuleFormula(
        name=name,
        rule=SGDWRule,
        switches={"nesterov": nesterov},
        states=("v",),
        numbers=numbers("lr", "momentum", keep="1.0 - lr * weight_decay"),
        device=f"""
        v = momentum * v + grad;
        param = keep * param - lr * {direction};
    """,
    )


_declare("Sgdw", False, "v")
_declare("SgdwNesterov", True, "(grad + momentum * v)")
