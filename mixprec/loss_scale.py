"""Loss scaling: three classes with the same verbs, so that no caller asks which one it has.

Small gradients flush to zero in float16. Multiplying the loss by a power of two moves all of them up by the same
number of binades without changing a bit of their mantissas (Micikevicius et al. 2018, section 3.2). The verbs:

- ``scale(loss)``: the loss to call ``backward`` on.
- ``unscale(gradient, out)``: the float32 gradient of the loss itself.
- ``adjust(overflow)``: advances the state by one step, after its gradients were checked.
- ``serialize(serializer)``: saves or loads the state, in Chainer's manner.

``value`` is the scale of the next step and ``exhausted`` says that training cannot go on.
"""

import math

import chainer.functions as F
import numpy as np


class LossScaleExhausted(RuntimeError):
    """Overflows in so many steps in a row that no loss scale can help: the network itself has diverged."""


class NoLossScale:
    """Scale 1. Gradients are still checked, and a step with inf or NaN in them is skipped."""

    value = 1.0
    exhausted = False

    def scale(self, loss):
        """Returns ``loss`` itself."""
        return loss

    def unscale(self, gradient, out):
        """Writes ``gradient`` to the float32 array ``out`` (same shape and device)."""
        out[...] = gradient

    def adjust(self, overflow):
        """Does nothing: the scale is always 1."""

    def serialize(self, serializer):
        """There is nothing to save."""


class StaticLossScale:
    """A constant scale.

    Args:
        value: the scale, a power of two (others would change the gradients' mantissas).

    Raises:
        ValueError: ``value`` is not a positive power of two.
    """

    exhausted = False

    def __init__(self, value):
        _check_power_of_two("value", value)
        self.value = float(value)

    def scale(self, loss):
        """Returns ``loss * value`` as a float32 variable."""
        return F.cast(loss, "float32") * self.value

    def unscale(self, gradient, out):
        """Writes ``gradient / value``, computed in float32, to ``out`` (float32, same shape and device)."""
        out[...] = gradient
        out *= np.float32(1.0 / self.value)

    def adjust(self, overflow):
        """Does nothing: the scale is constant."""

    def serialize(self, serializer):
        """There is nothing to save: the value comes from the program."""


class DynamicLossScale(StaticLossScale):
    """A scale that grows while gradients are finite and backs off when they are not.

    With floor and cap out of the way and ``hysteresis=1`` the sequence is that of PyTorch's ``GradScaler``::

        on overflow:   clean = 0; left = max(left - 1, 0)
                       if left == 0: value = max(floor, value * backoff)
        otherwise:     clean = clean + 1
                       if clean == interval: value = min(cap, value * growth); clean = 0; left = hysteresis

    Args:
        init: the first scale.
        growth: factor after ``interval`` clean steps in a row, greater than 1.
        backoff: factor on an overflow, between 0 and 1.
        interval: number of clean steps in a row before the scale grows.
        floor: the scale never falls below it; ``None`` switches that off.
        cap: the scale never rises above it; ``None`` switches that off.
        hysteresis: number of overflows, since the scale last grew, from which on it backs off.
        patience: number of overflows in a row after which :attr:`exhausted` is true.

    All scales and factors are powers of two.

    Raises:
        ValueError: naming the argument that is out of its range.
    """

    def __init__(
        self,
        init=2.0**16,
        growth=2.0,
        backoff=0.5,
        interval=2000,
        floor=2.0**-14,
        cap=2.0**24,
        hysteresis=1,
        patience=50,
    ):
        for name, value in (("init", init), ("growth", growth), ("backoff", backoff)):
            _check_power_of_two(name, value)
        if growth <= 1:
            raise ValueError(f"growth must be greater than 1; found {growth!r}")
        if backoff >= 1:
            raise ValueError(f"backoff must be between 0 and 1; found {backoff!r}")
        for name, value in (("interval", interval), ("hysteresis", hysteresis), ("patience", patience)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1; found {value!r}")
        for name, value in (("floor", floor), ("cap", cap)):
            if value is not None:
                _check_power_of_two(name, value)
        if floor is not None and floor > init:
            raise ValueError(f"floor must not be greater than init; found floor={floor!r}, init={init!r}")
        if cap is not None and cap < init:
            raise ValueError(f"cap must not be less than init; found cap={cap!r}, init={init!r}")

        self.growth = float(growth)
        self.backoff = float(backoff)
        self.interval = interval
        self.floor = None if floor is None else float(floor)
        self.cap = None if cap is None else float(cap)
        self.hysteresis = hysteresis
        self.patience = patience

        self.value = float(init)
        self._clean = 0
        self._hysteresis_left = hysteresis
        self._overflows_in_row = 0

    @property
    def exhausted(self):
        """Whether the last ``patience`` steps all overflowed."""
        return self._overflows_in_row >= self.patience

    def adjust(self, overflow):
        """Advances the scale by one step.

        Args:
            overflow: whether a gradient of the step was not finite. The new value takes effect on the next step.
        """
        if overflow:
            self._overflows_in_row += 1
            self._clean = 0
            self._hysteresis_left = max(self._hysteresis_left - 1, 0)
            if self._hysteresis_left == 0:
                value = self.value * self.backoff
                self.value = value if self.floor is None else max(self.floor, value)
            return
        self._overflows_in_row = 0
        self._clean += 1
        if self._clean == self.interval:
            value = self.value * self.growth
            self.value = value if self.cap is None else min(self.cap, value)
            self._clean = 0
            self._hysteresis_left = self.hysteresis

    def serialize(self, serializer):
        """Saves or loads the scale and its counters (the settings come from the program)."""
        self.value = float(serializer("value", self.value))
        self._clean = int(serializer("clean", self._clean))
        self._hysteresis_left = int(serializer("hysteresis_left", self._hysteresis_left))
        self._overflows_in_row = int(serializer("overflows_in_row", self._overflows_in_row))


def _check_power_of_two(name, value):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0 or math.frexp(value)[0] != 0.5:
        raise ValueError(f"{name} must be a positive power of two; found {value!r}")
