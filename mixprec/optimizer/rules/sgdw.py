"""SGD with momentum and decoupled weight decay.

:class:`SGDW` is an optimizer of Chainer like any other. The wrapper runs it by the formulas at the end of this file.
Without the wrapper Chainer runs :class:`SGDWRule`.
"""

from chainer import optimizer
from chainer.backends import cuda

from mixprec.optimizer.rules.formulas import RuleFormula
from mixprec.optimizer.rules.hyperparameters import set_all, set_given

_default_hyperparam = optimizer.Hyperparameter()
_default_hyperparam.lr = 0.01
_default_hyperparam.momentum = 0.9
_default_hyperparam.weight_decay = 0.0
_default_hyperparam.nesterov = False


class SGDWRule(optimizer.UpdateRule):
    """Update rule of :class:`SGDW`, which has the formula and the defaults.

    Args:
        parent_hyperparam: hyperparameters that provide the default values.
        lr: learning rate.
        momentum: decay rate of the sum of gradients.
        weight_decay: rate of the decoupled weight decay.
        nesterov: whether a step looks ahead.
    """

    def __init__(self, parent_hyperparam=None, lr=None, momentum=None, weight_decay=None, nesterov=None):
        super().__init__(parent_hyperparam or _default_hyperparam)
        set_given(self.hyperparam, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    def init_state(self, param):
        """Puts ``v`` into the state: the decaying sum of gradients."""
        self.state["v"] = param.device.xp.zeros_like(param.array)

    def update_core_cpu(self, param):
        """Updates the parameter on the CPU."""
        grad = param.grad
        if grad is None:
            return
        hp = self.hyperparam
        p, v = param.array, self.state["v"]
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

    def update_core_gpu(self, param):
        """Updates the parameter on a GPU."""
        grad = param.grad
        if grad is None:
            return
        hp = self.hyperparam
        direction = "grad + momentum * v" if hp.nesterov else "v"
        cuda.elementwise(
            "T grad, T lr, T momentum, T keep",
            "T param, T v",
            f"""v = momentum * v + grad;
               param = keep * param - lr * ({direction});""",
            "sgdw_nesterov" if hp.nesterov else "sgdw",
        )(grad, hp.lr, hp.momentum, 1.0 - hp.lr * hp.weight_decay, param.array, self.state["v"])


class SGDW(optimizer.GradientMethod):
    """SGD with momentum, of Nesterov's kind or not, and a weight decay that is no part of the gradient.

    See: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 1
    <https://arxiv.org/abs/1711.05101>. As timm's ``SGDW`` has it, a step of parameter :math:`w` with gradient
    :math:`g` is

    .. math::

        w &\\leftarrow (1 - \\gamma \\beta) w, \\\\
        v &\\leftarrow m v + g, \\\\
        w &\\leftarrow w - \\gamma v

    with :math:`g + m v` for :math:`v` in the last line if ``nesterov``, as in ``torch.optim.SGD``. So the decay of a
    step follows the learning rate, and neither passes through the momentum nor through hooks.

    Args:
        lr: learning rate :math:`\\gamma`.
        momentum: :math:`m`.
        weight_decay: :math:`\\beta`.
        nesterov: whether a step looks ahead.

    Raises:
        TypeError: ``nesterov`` is no bool.
        ValueError: another argument is no number, or out of its range.

    Example:
        >>> import chainer.links as L
        >>> import mixprec
        >>> inner = mixprec.SGDW(lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, no_decay="ndim <= 1").setup(L.Linear(3, 2))
        >>> optimizer.target.b.update_rule.hyperparam.weight_decay
        0.0
    """

    def __init__(
        self,
        lr: float = _default_hyperparam.lr,
        momentum: float = _default_hyperparam.momentum,
        weight_decay: float = _default_hyperparam.weight_decay,
        nesterov: bool = _default_hyperparam.nesterov,
    ) -> None:
        super().__init__()
        set_all(self.hyperparam, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    lr: float = optimizer.HyperparameterProxy("lr")
    momentum: float = optimizer.HyperparameterProxy("momentum")
    weight_decay: float = optimizer.HyperparameterProxy("weight_decay")
    nesterov: bool = optimizer.HyperparameterProxy("nesterov")

    def create_update_rule(self) -> SGDWRule:
        """Returns a new :class:`SGDWRule`."""
        return SGDWRule(self.hyperparam)


_DECLARATION = {
    "states": ("v",),
    "hyperparameters": ("lr", "momentum", "weight_decay"),
    "numbers": {"lr": "lr", "momentum": "momentum", "keep": "1.0 - lr * weight_decay"},
}

SGDW_PLAIN = RuleFormula(
    **_DECLARATION,
    device="""
        v = momentum * v + grad;
        param = keep * param - lr * v;
    """,
)

SGDW_NESTEROV = RuleFormula(
    **_DECLARATION,
    device="""
        v = momentum * v + grad;
        param = keep * param - lr * (grad + momentum * v);
    """,
)
