"""LAMB: Adam's steps, scaled to the norm of the parameter that they are for.

:class:`LAMB` is an optimizer of Chainer like any other. The wrapper runs it by the formulas at the end of this file.
Without the wrapper, and on NumPy with ``adapt``, Chainer runs :class:`LAMBRule`.
"""

import math

import numpy as np
from chainer import optimizer
from chainer.backends import cuda

from mixprec.optimizer.rules.adam import MOMENTS
from mixprec.optimizer.rules.formulas import RuleFormula
from mixprec.optimizer.rules.hyperparameters import set_all, set_given
from mixprec.optimizer.rules.norms import norm

_default_hyperparam = optimizer.Hyperparameter()
_default_hyperparam.lr = 0.001
_default_hyperparam.beta1 = 0.9
_default_hyperparam.beta2 = 0.999
_default_hyperparam.eps = 1e-6
_default_hyperparam.weight_decay = 0.0
_default_hyperparam.adapt = True


class LAMBRule(optimizer.UpdateRule):
    """Update rule of :class:`LAMB`, which has the formula and the defaults.

    Args:
        parent_hyperparam: hyperparameters that provide the default values.
        lr: learning rate.
        beta1: decay rate of the running average of gradients.
        beta2: decay rate of the running average of their squares.
        eps: added to the denominator.
        weight_decay: rate of the decoupled weight decay.
        adapt: whether to multiply the learning rate by the trust ratio.
    """

    def __init__(
        self,
        parent_hyperparam=None,
        lr=None,
        beta1=None,
        beta2=None,
        eps=None,
        weight_decay=None,
        adapt=None,
    ):
        super().__init__(parent_hyperparam or _default_hyperparam)
        set_given(
            self.hyperparam,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            adapt=adapt,
        )

    def init_state(self, param):
        """Puts ``m`` and ``v`` into the state: the running averages of gradients and of their squares."""
        xp = param.device.xp
        self.state["m"] = xp.zeros_like(param.array)
        self.state["v"] = xp.zeros_like(param.array)

    def update_core_cpu(self, param):
        """Updates the parameter on the CPU."""
        grad = param.grad
        if grad is None:
            return
        hp = self.hyperparam
        p, m, v = param.array, self.state["m"], self.state["v"]
        fix1, fix2 = self._fixes()
        m += (1.0 - hp.beta1) * (grad - m)
        v += (1.0 - hp.beta2) * (grad * grad - v)
        root = np.sqrt(v / fix2)
        root += hp.eps
        step = m / fix1
        step /= root
        step += hp.weight_decay * p
        param_norm, step_norm = self._norms(p, step)
        trust = param_norm / step_norm if param_norm > 0 and step_norm > 0 else 1.0
        step *= hp.lr * trust
        p -= step

    def update_core_gpu(self, param):
        """Updates the parameter on a GPU. Nothing is read from it."""
        grad = param.grad
        if grad is None:
            return
        hp = self.hyperparam
        fix1, fix2 = self._fixes()
        step = cuda.cupy.empty_like(param.array)
        cuda.elementwise(
            "T grad, T param, T one_minus_beta1, T one_minus_beta2, T fix1, T fix2, T eps, T weight_decay",
            "T m, T v, T step",
            """m += one_minus_beta1 * (grad - m);
               v += one_minus_beta2 * (grad * grad - v);
               step = m / fix1 / (sqrt(v / fix2) + eps) + weight_decay * param;""",
            "lamb_step",
        )(
            grad,
            param.array,
            1.0 - hp.beta1,
            1.0 - hp.beta2,
            fix1,
            fix2,
            hp.eps,
            hp.weight_decay,
            self.state["m"],
            self.state["v"],
            step,
        )
        cuda.elementwise(
            "T step, T param_norm, T step_norm, T lr",
            "T param",
            """const T trust = param_norm > 0 && step_norm > 0 ? param_norm / step_norm : static_cast<T>(1);
               param -= lr * trust * step;""",
            "lamb",
        )(step, *self._norms(param.array, step), hp.lr, param.array)

    def _fixes(self):
        hp = self.hyperparam
        return 1.0 - math.pow(hp.beta1, self.t), 1.0 - math.pow(hp.beta2, self.t)

    def _norms(self, p, step):
        # A norm of 0 makes the trust ratio 1.
        return (norm(p), norm(step)) if self.hyperparam.adapt else (0.0, 0.0)


class LAMB(optimizer.GradientMethod):
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
        adapt: whether there is a trust ratio; otherwise it is 1, and the rule that of AdamW. It is meant for the
            ``hyperparam`` of the rules of biases and normalizations.

    Raises:
        TypeError: ``adapt`` is no bool.
        ValueError: another argument is no number, or out of its range.

    Example:
        >>> import chainer.links as L
        >>> import mixprec
        >>> model = L.Linear(3, 2)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(mixprec.LAMB(lr=0.002, weight_decay=0.01)).setup(model)
        >>> optimizer.lr = 0.001  # as a schedule does
        >>> model.W.update_rule.hyperparam.lr
        0.001
    """

    def __init__(
        self,
        lr: float = _default_hyperparam.lr,
        beta1: float = _default_hyperparam.beta1,
        beta2: float = _default_hyperparam.beta2,
        eps: float = _default_hyperparam.eps,
        weight_decay: float = _default_hyperparam.weight_decay,
        adapt: bool = _default_hyperparam.adapt,
    ) -> None:
        super().__init__()
        set_all(
            self.hyperparam,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            adapt=adapt,
        )

    lr: float = optimizer.HyperparameterProxy("lr")
    beta1: float = optimizer.HyperparameterProxy("beta1")
    beta2: float = optimizer.HyperparameterProxy("beta2")
    eps: float = optimizer.HyperparameterProxy("eps")
    weight_decay: float = optimizer.HyperparameterProxy("weight_decay")
    adapt: bool = optimizer.HyperparameterProxy("adapt")

    def create_update_rule(self) -> LAMBRule:
        """Returns a new :class:`LAMBRule`."""
        return LAMBRule(self.hyperparam)


_DECLARATION = {
    "states": ("m", "v"),
    "hyperparameters": ("lr", "beta1", "beta2", "eps", "weight_decay"),
    "numbers": {
        "lr": "lr",
        "one_minus_beta1": "1.0 - beta1",
        "one_minus_beta2": "1.0 - beta2",
        "fix1": "1.0 - pow(beta1, t)",
        "fix2": "1.0 - pow(beta2, t)",
        "eps": "eps",
        "weight_decay": "weight_decay",
    },
}
_STEP = (
    MOMENTS
    + """
        const float step = m / fix1 / (sqrtf(v / fix2) + eps) + weight_decay * param;
"""
)

LAMB_ADAPTED = RuleFormula(
    **_DECLARATION,
    step=_STEP,
    device="""
        param -= lr * (param_norm > 0 && step_norm > 0 ? param_norm / step_norm : 1.0f) * step;
    """,
)

LAMB_UNADAPTED = RuleFormula(
    **_DECLARATION,
    device=_STEP
    + """
        param -= lr * step;
    """,
)
