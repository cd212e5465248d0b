"""Schedule-free SGD: the learning rate stays, and an average of the weights is what counts.

:class:`ScheduleFreeSGD` is an optimizer of Chainer like any other. The wrapper runs it by the formula at the end of
this file, and :mod:`mixprec.optimizer.evaluated_weights` gives a model the average for an evaluation. Without the
wrapper Chainer runs :class:`ScheduleFreeSGDRule`.
"""

from chainer import backend, optimizer
from chainer.backends import cuda

from mixprec import arguments
from mixprec.optimizer.rules.formulas import CARRIED, RuleFormula
from mixprec.optimizer.rules.hyperparameters import set_all, set_given

_default_hyperparam = optimizer.Hyperparameter()
_default_hyperparam.lr = 1.0
_default_hyperparam.momentum = 0.9
_default_hyperparam.weight_decay = 0.0


class ScheduleFreeSGDRule(optimizer.UpdateRule):
    """Update rule of :class:`ScheduleFreeSGD`, which has the formula and the defaults.

    Args:
        parent_hyperparam: hyperparameters that provide the default values.
        lr: learning rate.
        momentum: share of the average in the point at which gradients are taken.
        weight_decay: factor of the L2 penalty.
    """

    def __init__(self, parent_hyperparam=None, lr=None, momentum=None, weight_decay=None):
        super().__init__(parent_hyperparam or _default_hyperparam)
        set_given(self.hyperparam, lr=lr, momentum=momentum, weight_decay=weight_decay)
        if momentum is not None:
            _check(momentum)

    def init_state(self, param):
        """Puts ``z`` into the state, which begins with the parameter in the first step, and the sum of weights."""
        xp = param.device.xp
        self.state["z"] = xp.zeros_like(param.array)
        self.state[CARRIED] = xp.zeros_like(param.array, "float64", shape=2)

    def update_core_cpu(self, param):
        """Updates the parameter on the CPU."""
        grad = param.grad
        if grad is None:
            return
        p, z, carried = param.array, self.state["z"], self.state[CARRIED]
        first, c, y_rate, lr, weight_decay = SCHEDULE_FREE_SGD.numbers_of(self, self.t)
        if first:
            z[...] = p
        g = weight_decay * p
        g += grad
        step = z - p
        step *= c
        p += step
        p += y_rate * g
        g *= lr
        z -= g
        carried[...] = SCHEDULE_FREE_SGD.carried_after(self)

    def update_core_gpu(self, param):
        """Updates the parameter on a GPU. Nothing is read from it."""
        grad = param.grad
        if grad is None:
            return
        hp = self.hyperparam
        carried = self.state[CARRIED]
        cuda.elementwise(
            "T grad, float64 weights, float64 largest, float64 lr, float64 momentum, T weight_decay",
            "T param, T z",
            """const double weight = (lr > largest ? lr : largest) * (lr > largest ? lr : largest);
               const double sum = weights + weight;
               const double share = sum == 0 ? 0 : weight / sum;
               const T g = grad + weight_decay * param;
               if (weights == 0) z = param;
               param += static_cast<T>(share) * (z - param);
               param += static_cast<T>(lr * (momentum * (1 - share) - 1)) * g;
               z -= static_cast<T>(lr) * g""",
            "schedule_free_sgd",
        )(grad, carried[0], carried[1], hp.lr, hp.momentum, hp.weight_decay, param.array, self.state["z"])
        cuda.elementwise(
            "float64 lr",
            "float64 weights, float64 largest",
            """largest = lr > largest ? lr : largest;
               weights += largest * largest""",
            "schedule_free_sgd_weight",
        )(hp.lr, carried[:1], carried[1:])


class ScheduleFreeSGD(optimizer.GradientMethod):
    """SGD without a schedule: gradients are taken between a fast iterate and its average, which is the result.

    See: Defazio et al. 2024, "The Road Less Scheduled" <https://arxiv.org/abs/2405.15682>. With gradient :math:`g` at
    :math:`y`, which is what the model has in training, step :math:`t` is

    .. math::

        g &\\leftarrow g + \\lambda y, \\\\
        z &\\leftarrow z - \\gamma g, \\\\
        x &\\leftarrow (1 - c) x + c z, \\quad c = \\frac{\\gamma_{max}^2}{\\sum \\gamma_{max}^2}, \\\\
        y &\\leftarrow (1 - \\beta) z + \\beta x

    where :math:`\\gamma_{max}` is the largest learning rate so far, as in ``SGDScheduleFree`` of
    facebookresearch/schedule_free with ``r=0`` and ``weight_lr_power=2``. There is one state, :math:`z`; :math:`x`
    follows from it and from :math:`y`. A warm-up is a learning rate that rises; steps that are skipped do not count.

    The model is to be evaluated, and used, at :math:`x`: inside of ``with optimizer.evaluated():`` of
    :class:`~mixprec.MixedPrecisionOptimizer` it has these weights. The running statistics of batch normalizations are
    those of training, at :math:`y`.

    Args:
        lr: learning rate :math:`\\gamma`: that of SGD, or up to ten times as much.
        momentum: :math:`\\beta`, above 0 and below 1; it stays as it is during training.
        weight_decay: :math:`\\lambda`, at :math:`y`.

    Raises:
        ValueError: an argument is no number, or out of its range.

    Example:
        >>> import chainer.functions as F, chainer.links as L, numpy as np
        >>> import mixprec
        >>> model = L.Linear(3, 2)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(mixprec.ScheduleFreeSGD(lr=0.5)).setup(model)
        >>> for _ in range(2):
        ...     optimizer.update(lambda: F.sum(model(np.ones((1, 3), np.float32)) ** 2))
        >>> trained = model.W.array.copy()
        >>> with optimizer.evaluated():
        ...     bool((model.W.array == trained).all())
        False
        >>> bool((model.W.array == trained).all())
        True
    """

    def __init__(
        self,
        lr: float = _default_hyperparam.lr,
        momentum: float = _default_hyperparam.momentum,
        weight_decay: float = _default_hyperparam.weight_decay,
    ) -> None:
        super().__init__()
        set_all(self.hyperparam, lr=lr, momentum=momentum, weight_decay=weight_decay)
        _check(momentum)

    lr: float = optimizer.HyperparameterProxy("lr")
    momentum: float = optimizer.HyperparameterProxy("momentum")
    weight_decay: float = optimizer.HyperparameterProxy("weight_decay")

    def create_update_rule(self) -> ScheduleFreeSGDRule:
        """Returns a new :class:`ScheduleFreeSGDRule`."""
        return ScheduleFreeSGDRule(self.hyperparam)


def average(rule, y):
    """Returns the average ``x`` of a parameter in training, a new array of its dtype; ``y`` itself before a step.

    ``y = (1 - beta) z + beta x``, so ``x = y + (1 - 1 / beta) (z - y)``. Nothing is read from a device.

    Args:
        rule: :class:`ScheduleFreeSGDRule` that has a state.
        y: array of its parameter's master.
    """
    device = backend.get_device_from_array(y)
    z, carried = (device.send(rule.state[name]) for name in ("z", CARRIED))
    x = z - y
    x *= ((carried[0] > 0) * (1 - 1 / rule.hyperparam.momentum)).astype(y.dtype)
    x += y
    return x


def _check(momentum):
    if momentum == 0:
        raise ValueError(f"momentum of ScheduleFreeSGD must be above 0; found {arguments.found(momentum)}")


_WEIGHT = "pow(max(lr, largest), 2)"
_SUM = f"(weights + {_WEIGHT})"
_SHARE = f"{_WEIGHT} / ({_SUM} + ({_SUM} == 0))"  # 0 as long as the learning rate is 0

SCHEDULE_FREE_SGD = RuleFormula(
    states=("z",),
    hyperparameters=("lr", "momentum", "weight_decay"),
    carried={"weights": _SUM, "largest": "max(lr, largest)"},
    numbers={
        "first": "weights == 0",
        "c": _SHARE,
        "y_rate": f"lr * (momentum * (1.0 - {_SHARE}) - 1.0)",
        "lr": "lr",
        "weight_decay": "weight_decay",
    },
    device="""
        const float g = grad + weight_decay * param;
        z = first != 0.0f ? param : z;
        param += c * (z - param);
        param += y_rate * g;
        z -= lr * g;
    """,
)
