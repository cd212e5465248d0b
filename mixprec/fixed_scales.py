"""Loss scales that stay what they are, beside the one that moves (:mod:`mixprec.loss_scale`, which has the methods)."""

import math
from typing import Any

import numpy as np
from chainer import AbstractSerializer, backend

from mixprec import arguments
from mixprec.patience import Patience, check_serializer


class _FixedScale(Patience):
    """What both have: of a step they count only whether it was skipped."""

    is_searching: bool = False

    def adjust(self, overflow: Any) -> None:
        """Counts overflows in a row; the scale is constant.

        Args:
            overflow: whether a gradient of the step was not finite: a bool, or a boolean array of shape (), which is
                not read.

        Raises:
            TypeError: ``overflow`` is neither.
        """
        if self._is_clean_on_host(overflow):
            self._forget_count()
        else:
            self._count(overflow)

    def reset(self) -> None:
        """Goes back to the first step: no overflow in a row."""
        self._forget_count()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or loads the number of overflows in a row; all else comes from the program."""
        check_serializer(serializer)
        self._serialize_count(serializer)


class NoLossScale(_FixedScale):
    """Scale 1. Gradients are still checked, and a step with inf or NaN in them is skipped.

    Args:
        patience: number of such steps in a row after which training ends with :class:`~mixprec.LossScaleExhausted`;
            ``None`` switches that off.

    Raises:
        ValueError: ``patience`` is less than 1, or more than 2^31 - 1.

    Example:
        >>> import chainer
        >>> import mixprec
        >>> inner = chainer.optimizers.SGD()
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, loss_scale=mixprec.NoLossScale())  # or None
        >>> optimizer.loss_scale
        1.0
    """

    value: float = 1.0
    course: None = None

    def __init__(self, patience: int | None = 50) -> None:
        super().__init__(patience)

    def factor(self, device: backend.Device) -> None:
        """Returns ``None``: there is nothing to multiply by."""


class StaticLossScale(_FixedScale):
    """A constant scale. Gradients are checked, and a step with inf or NaN in them is skipped.

    Args:
        value: the scale, a power of two (others would change the gradients' mantissas).
        patience: number of such steps in a row after which training ends with :class:`~mixprec.LossScaleExhausted`;
            ``None`` switches that off.

    Raises:
        ValueError: ``value`` is not a positive power of two, or ``patience`` is out of its range.

    Example:
        >>> import chainer
        >>> import mixprec
        >>> inner = chainer.optimizers.SGD()
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, loss_scale=mixprec.StaticLossScale(1024))  # or 1024
        >>> optimizer.loss_scale, optimizer.scales_dynamically
        (1024.0, False)
    """

    def __init__(self, value: float, patience: int | None = 50) -> None:
        super().__init__(patience)
        self.value: float = arguments.power_of_two("value", value)
        self._factors = {}

    def factor(self, device: backend.Device) -> Any:
        """Returns the scale as a float32 array of shape () on ``device`` (a :class:`chainer.backend.Device`)."""
        check_device(device)
        if device.name not in self._factors:
            self._factors[device.name] = device.send(np.array(self.value, np.float32))
        return self._factors[device.name]

    @property
    def course(self) -> str:
        """Where the scale is, in words."""
        return f"the loss scale is always 2^{round(math.log2(self.value))}"


def check_device(device):
    """Raises TypeError unless it is one."""
    if not isinstance(device, backend.Device):
        raise arguments.not_a("device", device, "a chainer.backend.Device")
