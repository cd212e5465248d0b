"""Loss scales that stay what they are, beside the one that moves (:mod:`mixprec.loss_scale`, which has the methods)."""

from typing import Any

import numpy as np
from chainer import AbstractSerializer, backend

from mixprec import arguments


class NoLossScale:
    """Scale 1. Gradients are still checked, and a step with inf or NaN in them is skipped.

    Example:
        >>> import chainer
        >>> import mixprec
        >>> inner = chainer.optimizers.SGD()
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, loss_scale=mixprec.NoLossScale())  # or None
        >>> optimizer.loss_scale
        1.0
    """

    value: float = 1.0
    patience: int | None = None
    is_searching: bool = False

    def factor(self, device: backend.Device) -> None:
        """Returns ``None``: there is nothing to multiply by."""

    def adjust(self, overflow: Any) -> None:
        """Does nothing: the scale is always 1."""

    def reset(self) -> None:
        """Does nothing: there is no state."""

    def serialize(self, serializer: AbstractSerializer) -> None:
        """There is nothing to save."""
        check_serializer(serializer)


class StaticLossScale:
    """A constant scale. Gradients are checked, and a step with inf or NaN in them is skipped.

    Args:
        value: the scale, a power of two (others would change the gradients' mantissas).

    Raises:
        ValueError: ``value`` is not a positive power of two.

    Example:
        >>> import chainer
        >>> import mixprec
        >>> inner = chainer.optimizers.SGD()
        >>> optimizer = mixprec.MixedPrecisionOptimizer(inner, loss_scale=mixprec.StaticLossScale(1024))  # or 1024
        >>> optimizer.loss_scale, optimizer.scales_dynamically
        (1024.0, False)
    """

    patience: int | None = None
    is_searching: bool = False

    def __init__(self, value: float) -> None:
        self.value: float = arguments.power_of_two("value", value)
        self._factors = {}

    def factor(self, device: backend.Device) -> Any:
        """Returns the scale as a float32 array of shape () on ``device`` (a :class:`chainer.backend.Device`)."""
        check_device(device)
        if device.name not in self._factors:
            self._factors[device.name] = device.send(np.array(self.value, np.float32))
        return self._factors[device.name]

    def adjust(self, overflow: Any) -> None:
        """Does nothing: the scale is constant."""

    def reset(self) -> None:
        """Does nothing: the scale is constant."""

    def serialize(self, serializer: AbstractSerializer) -> None:
        """There is nothing to save: the value comes from the program."""
        check_serializer(serializer)


def check_serializer(serializer):
    """Raises TypeError unless it is one."""
    arguments.instance("serializer", serializer, AbstractSerializer, "a chainer.AbstractSerializer")


def check_device(device):
    """Raises TypeError unless it is one."""
    if not isinstance(device, backend.Device):
        raise arguments.not_a("device", device, "a chainer.backend.Device")
