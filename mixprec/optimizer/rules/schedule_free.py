"""Schedule-free SGD: a constant learning rate, and an average of the weights as the result."""

from dataclasses import dataclass
from typing import ClassVar

from chainer import backend

from mixprec.base import arguments
from mixprec.optimizer.rules.formulas import CARRIED, RuleFormula, numbers
from mixprec.optimizer.rules.own_rules import SHARE, Hyperparameter, OwnOptimizer, OwnRule, hyperparameter


class ScheduleFreeSGDRule(OwnRule):
    """Update rule of :class:`ScheduleFreeSGD`. The first step sets ``z`` to the parameter."""

    def update_on_cpu(self, p, grad):
        """The formula in NumPy."""
        z, formula = self.state["z"], self.formula
        lr, weight_decay, first, c, y_rate = formula.numbers_of(self, self.t)
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
        self.state[CARRIED][...] = formula.carried_after(self)

    def average(self, y):
        """Returns the average ``x`` of a parameter in training, a new array of its dtype; before the first step ``y``.

        ``y = (1 - beta) z + beta x``, so ``x = y + (1 - 1 / beta) (z - y)``. Nothing is read from a device.

        Args:
            y: array of the parameter's master. The rule must have a state.
        """
        device = backend.get_device_from_array(y)
        z, carried = (device.send(self.state[name]) for name in ("z", CARRIED))
        x = z - y
        x *= ((carried[0] > 0) * (1 - 1 / self.hyperparam.momentum)).astype(y.dtype)
        x += y
        return x


class _ShareAboveZero(Hyperparameter):
    def checked(self, value):
        number = super().checked(value)
        if number == 0:
            raise ValueError(f"momentum of ScheduleFreeSGD must be above 0; found {arguments.found(value)}")
        return number


@dataclass(eq=False, repr=False)
class ScheduleFreeSGD(OwnOptimizer[ScheduleFreeSGDRule]):
    """SGD without a schedule: gradients are taken between a fast iterate and its average, which is the result.

    See: Defazio et al. 2024, "The Road Less Scheduled" <https://arxiv.org/abs/2405.15682>. With gradient :math:`g` at
    :math:`y`, the model's weights in training, step :math:`t` is

    .. math::

        g &\\leftarrow g + \\lambda y, \\\\
        z &\\leftarrow z - \\gamma g, \\\\
        x &\\leftarrow (1 - c) x + c z, \\quad c = \\frac{\\gamma_{max}^2}{\\sum \\gamma_{max}^2}, \\\\
        y &\\leftarrow (1 - \\beta) z + \\beta x

    where :math:`\\gamma_{max}` is the largest learning rate so far, as in ``SGDScheduleFree`` of
    facebookresearch/schedule_free with ``r=0`` and ``weight_lr_power=2``. There is one state, :math:`z`; :math:`x`
    follows from it and from :math:`y`. For a warm-up let the learning rate rise; skipped steps do not count.

    Evaluate and use the model at :math:`x`: inside of ``with optimizer.evaluated():`` of
    :class:`~mixprec.MixedPrecisionOptimizer` it has these weights. The running statistics of batch normalizations are
    from training, at :math:`y`.

    Args:
        lr: learning rate :math:`\\gamma`: as for SGD, or up to ten times as large.
        momentum: :math:`\\beta`, above 0 and below 1; it must not change during training.
        weight_decay: :math:`\\lambda`, at :math:`y`.

    Raises:
        ValueError: an argument is not a number, or out of its range.

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

    keys: ClassVar = ("momentum",)
    has_average: ClassVar = True

    lr: float = hyperparameter(1.0)
    momentum: float = _ShareAboveZero(0.9, *SHARE)  # type: ignore[assignment]
    weight_decay: float = hyperparameter(0.0)


_WEIGHT = "pow(max(lr, largest), 2)"
_SUM = f"(weights + {_WEIGHT})"
_SHARE = f"{_WEIGHT} / ({_SUM} + ({_SUM} == 0))"  # 0 as long as the learning rate is 0

RuleFormula(
    name="ScheduleFreeSgd",
    rule=ScheduleFreeSGDRule,
    states=("z",),
    carried={"weights": _SUM, "largest": "max(lr, largest)"},
    numbers=numbers(
        "lr", "weight_decay", first="weights == 0", c=_SHARE, y_rate=f"lr * (momentum * (1.0 - {_SHARE}) - 1.0)"
    ),
    device="""
        const float g = grad + weight_decay * param;
        z = first != 0.0f ? param : z;
        param += c * (z - param);
        param += y_rate * g;
        z -= lr * g;
    """,
)
