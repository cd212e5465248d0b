"""Loss scales that never change; :mod:`mixprec.precision.loss_scale` has the dynamic one, and the list of methods.

They only count skipped steps.
"""

import math
from typing import Any

import numpy as np
from chainer import backend

from mixprec.base import arguments
from mixprec.precision.step_state import ScaleState, check_device


class NoLossScale(ScaleState):
    """Scale 1. Gradients are still checked, and a step with inf or NaN in them is skipped.

    Args:
        patience: number of such steps in a row after which training ends with :class:`~mixprec.LossScaleExhausted`;
            ``None`` for no limit.

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
    description: None = None

    def __init__(self, patience: int | None = 50) -> None:
        super().__init__(patience)


class StaticLossScale(ScaleState):
    """A constant scale. Gradients are checked, and a step with inf or NaN in them is skipped.

    Args:
        value: the scale, a power of two (others would change the gradients' mantissas).
        patience: number of such steps in a row after which training ends with :class:`~mixprec.LossScaleExhausted`;
            ``None`` for no limit.

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
    def description(self) -> str:
        """The current scale as text, for messages."""
        return f"the loss scale is always 2^{round(math.log2(self.value))}"
