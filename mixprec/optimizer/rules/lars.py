"""LARS: a learning rate of its own for every parameter, from the norms of the parameter and of its gradient.

:class:`LARS` is an optimizer of Chainer like any other. The wrapper runs it by the formulas at the end of this file.
Without the wrapper, and on NumPy with ``adapt``, Chainer runs :class:`LARSRule`.
"""

from chainer import optimizer
from chainer.backends import cuda

from mixprec.optimizer.rules.formulas import RuleFormula
from mixprec.optimizer.rules.hyperparameters import set_all, set_given
from mixprec.optimizer.rules.norms import norm

_default_hyperparam = optimizer.Hyperparameter()
_default_hyperparam.lr = 1.0
_default_hyperparam.momentum = 0.9
_default_hyperparam.weight_decay = 0.0
_default_hyperparam.trust_coefficient = 0.001
_default_hyperparam.eps = 1e-9
_default_hyperparam.adapt = True


class LARSRule(optimizer.UpdateRule):
    """Update rule of :class:`LARS`, which has the formula and the defaults.

    Args:
        parent_hyperparam: hyperparameters that provide the default values.
        lr: learning rate, by which a schedule moves.
        momentum: decay rate of the steps.
        weight_decay: factor of the L2 penalty.
        trust_coefficient: length of a step in that of the parameter, before ``lr``.
        eps: added to the denominator.
        adapt: whether to multiply the learning rate by the trust ratio.
    """

    def __init__(
        self,
        parent_hyperparam=None,
        lr=None,
        momentum=None,
        weight_decay=None,
        trust_coefficient=None,
        eps=None,
        adapt=None,
    ):
        super().__init__(parent_hyperparam or _default_hyperparam)
        set_given(
            self.hyperparam,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            eps=eps,
            adapt=adapt,
        )

    def init_state(self, param):
        """Puts ``v`` into the state: the last step."""
        self.state["v"] = param.device.xp.zeros_like(param.array)

    def update_core_cpu(self, param):
        """Updates the parameter on the CPU."""
        grad = param.grad
        if grad is None:
            return
        hp = self.hyperparam
        p, v = param.array, self.state["v"]
        param_norm, grad_norm = self._norms(p, grad)
        trust = 1.0
        if param_norm > 0 and grad_norm > 0:
            trust = hp.trust_coefficient * param_norm / (grad_norm + hp.weight_decay * param_norm + hp.eps)
        step = hp.weight_decay * p
        step += grad
        step *= hp.lr * trust
        v *= hp.momentum
        v += step
        p -= v

    def update_core_gpu(self, param):
        """Updates the parameter on a GPU. Nothing is read from it."""
        grad = param.grad
        if grad is None:
            return
        hp = self.hyperparam
        cuda.elementwise(
            "T grad, T param_norm, T grad_norm, T lr, T momentum, T weight_decay, T trust_coefficient, T eps",
            "T param, T v",
            """const T trust = param_norm > 0 && grad_norm > 0
                   ? trust_coefficient * param_norm / (grad_norm + weight_decay * param_norm + eps)
                   : static_cast<T>(1);
               v = momentum * v + lr * trust * (grad + weight_decay * param);
               param -= v;""",
            "lars",
        )(
            grad,
            *self._norms(param.array, grad),
            hp.lr,
            hp.momentum,
            hp.weight_decay,
            hp.trust_coefficient,
            hp.eps,
            param.array,
            self.state["v"],
        )

    def _norms(self, p, grad):
        # A norm of 0 makes the trust ratio 1.
        return (norm(p), norm(grad)) if self.hyperparam.adapt else (0.0, 0.0)


class LARS(optimizer.GradientMethod):
    """Layer-wise adaptive rate scaling with momentum.

    See: You et al. 2017, "Large Batch Training of Convolutional Networks" <https://arxiv.org/abs/1708.03888>. A step
    of parameter :math:`w` with gradient :math:`g` is

    .. math::

        \\lambda &= \\eta \\frac{\\|w\\|}{\\|g\\| + \\beta \\|w\\| + \\epsilon}, \\\\
        v &\\leftarrow m v + \\gamma \\lambda (g + \\beta w), \\\\
        w &\\leftarrow w - v

    with :math:`\\lambda = 1` if either norm is 0. Unlike the hook :class:`chainer.optimizer_hooks.GradientLARS`, the
    rule has a trust coefficient, a weight decay that a parameter may have of its own, and parameters without a trust
    ratio.

    Args:
        lr: learning rate :math:`\\gamma`.
        momentum: :math:`m`.
        weight_decay: :math:`\\beta`.
        trust_coefficient: :math:`\\eta`.
        eps: :math:`\\epsilon`.
        adapt: whether there is a trust ratio; otherwise :math:`\\lambda = 1`. It is meant for the ``hyperparam`` of
            the rules of biases and normalizations.

    Raises:
        TypeError: ``adapt`` is no bool.
        ValueError: another argument is no number, or out of its range.

    Example:
        >>> import chainer.links as L
        >>> import mixprec
        >>> model = L.BatchNormalization(4)
        >>> inner = mixprec.LARS(lr=2.0, weight_decay=5e-5)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, no_decay="ndim <= 1").setup(model)
        >>> model.gamma.update_rule.hyperparam.adapt  # no trust ratio for scales and shifts of normalizations
        False
    """

    def __init__(
        self,
        lr: float = _default_hyperparam.lr,
        momentum: float = _default_hyperparam.momentum,
        weight_decay: float = _default_hyperparam.weight_decay,
        trust_coefficient: float = _default_hyperparam.trust_coefficient,
        eps: float = _default_hyperparam.eps,
        adapt: bool = _default_hyperparam.adapt,
    ) -> None:
        super().__init__()
        set_all(
            self.hyperparam,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            eps=eps,
            adapt=adapt,
        )

    lr: float = optimizer.HyperparameterProxy("lr")
    momentum: float = optimizer.HyperparameterProxy("momentum")
    weight_decay: float = optimizer.HyperparameterProxy("weight_decay")
    trust_coefficient: float = optimizer.HyperparameterProxy("trust_coefficient")
    eps: float = optimizer.HyperparameterProxy("eps")
    adapt: bool = optimizer.HyperparameterProxy("adapt")

    def create_update_rule(self) -> LARSRule:
        """Returns a new :class:`LARSRule`."""
        return LARSRule(self.hyperparam)


LARS_ADAPTED = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum", "weight_decay", "trust_coefficient", "eps"),
    numbers={
        "lr": "lr",
        "momentum": "momentum",
        "weight_decay": "weight_decay",
        "trust_coefficient": "trust_coefficient",
        "eps": "eps",
    },
    norms=True,
    device="""
        const float trust = param_norm > 0 && grad_norm > 0
            ? trust_coefficient * param_norm / (grad_norm + weight_decay * param_norm + eps) : 1.0f;
        v = momentum * v + lr * trust * (grad + weight_decay * param);
        param -= v;
    """,
)


LARS_UNADAPTED = RuleFormula(
    states=("v",),
    hyperparameters=("lr", "momentum", "weight_decay"),
    numbers={"lr": "lr", "momentum": "momentum", "weight_decay": "weight_decay"},
    device="""
        v = momentum * v + lr * (grad + weight_decay * param);
        param -= v;
    """,
)
