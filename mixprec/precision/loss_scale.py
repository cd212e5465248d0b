"""Loss scaling: three classes with the same methods, so that callers can use any of them.

:class:`~mixprec.MixedPrecisionOptimizer` makes one from its ``loss_scale`` argument, or takes yours. It gets the factor
before ``backward``, and adjusts the scale at the end of each ``update()``.

Small gradients flush to zero in float16. Multiplying the loss by a power of two adds the same number to all exponents,
and does not change a bit of the mantissas (Micikevicius et al. 2018, section 3.2). The methods:

- ``factor(device)``: the factor on the loss, on the device; ``None`` for none.
- ``adjust(overflow)``: advances the state by one step, after its gradients were checked
  (:mod:`mixprec.precision.step_state`).
- ``reset()``: back to the first step.
- ``serialize(serializer)``: saves or loads the state, in Chainer's manner.

``value`` is the scale of the next step as a float, ``patience`` the number of overflows in a row after which training
ends, and ``description`` the current scale as text for messages, or ``None``.

An object belongs to one optimizer, whose steps it counts.
"""

import contextlib
import math
from typing import Any, ClassVar

import numpy as np
from chainer import AbstractSerializer, Deserializer, backend

from mixprec.backends.transfers import stored, to_host
from mixprec.base import arguments
from mixprec.base.bounds import INT32
from mixprec.precision.fixed_scales import NoLossScale, StaticLossScale
from mixprec.precision.step_state import ScaleState

_SEARCH_BACKOFF = 0.25


class LossScaleExhausted(RuntimeError):
    """Raised after ``patience`` overflows in a row: a smaller scale cannot help, the network itself has diverged.

    All loss scales count overflows, also :class:`NoLossScale` and :class:`StaticLossScale`. With a static scale the
    message names it, as it may be too large.

    Example:
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> scale = mixprec.DynamicLossScale(patience=2, search=False)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(), loss_scale=scale).setup(model)
        >>> x, t = np.full((8, 4), np.inf, np.float32), np.zeros(8, np.int32)
        >>> try:
        ...     while True:
        ...         optimizer.update(model, x, t)
        ... except mixprec.LossScaleExhausted as error:
        ...     print(str(error).partition(";")[0])
        2 steps in a row overflowed, as many as patience allows
    """


class DynamicLossScale(ScaleState):
    """A scale that grows while gradients are finite and backs off when they are not.

    The attribute :attr:`rules` has the rules. Without floor and cap, and with ``hysteresis=1``, the sequence equals
    PyTorch's ``GradScaler``.

    Args:
        init: the first scale.
        growth: factor after ``interval`` clean steps in a row, greater than 1.
        backoff: factor on an overflow, between 0 and 1.
        interval: number of clean steps in a row before the scale grows.
        floor: the scale never falls below it; ``None`` for no floor.
        cap: the scale never rises above it; ``None`` for no cap.
        hysteresis: the scale backs off from this overflow on, counted since it last grew; 1 means at every overflow.
        patience: number of overflows in a row after which training ends with :class:`LossScaleExhausted`; ``None`` for
            no limit.
        search: whether to search for a first scale without skipping steps: until gradients are finite for the first
            time, ``update(lossfun)`` repeats the backward pass at a quarter of the scale, at most 8 times.
            ``docs/numerics.md`` lists the exceptions.

    All scales and factors are powers of two. Counters on a device are int32: ``interval``, ``hysteresis`` and
    ``patience`` are at most 2^31 - 1.

    Raises:
        ValueError: an argument is out of its range; the message names it.

    Example:
        >>> import chainer
        >>> import mixprec
        >>> scale = mixprec.DynamicLossScale(init=2**15, interval=1000)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD(), loss_scale=scale)
        >>> scale.adjust(overflow=True)  # what update() does at the end of a step
        >>> optimizer.loss_scale
        16384.0
    """

    state: ClassVar[dict[str, str]] = {
        "value": "float64",
        "clean": "int32",
        "hysteresis_left": "int32",
        **ScaleState.state,
    }
    settings: ClassVar[dict[str, float]] = {
        "growth": 0.0,
        "backoff": 0.0,
        "floor": 0.0,
        "cap": math.inf,
        "interval": 0,
        "hysteresis": 0,
    }
    rules = (
        "full = clean + 1 == interval",
        "clean = where(overflow | full, 0, clean + 1)",
        "hysteresis_left = where(overflow, at_least(hysteresis_left - 1, 0), where(full, hysteresis, hysteresis_left))",
        "lower = where(hysteresis_left == 0, at_least(value * backoff, floor), value)",
        "higher = where(full, at_most(value * growth, cap), value)",
        "value = where(overflow, lower, higher)",
        *ScaleState.rules,
    )

    def __init__(
        self,
        init: float = 2.0**16,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        floor: float | None = 2.0**-14,
        cap: float | None = 2.0**24,
        hysteresis: int = 1,
        patience: int | None = 50,
        search: bool = False,
    ) -> None:
        super().__init__(patience)
        self.init: float = arguments.power_of_two("init", init)
        self.growth: float = arguments.power_of_two("growth", growth)
        self.backoff: float = arguments.power_of_two("backoff", backoff)
        self.floor: float | None = None if floor is None else arguments.power_of_two("floor", floor)
        self.cap: float | None = None if cap is None else arguments.power_of_two("cap", cap)
        self.interval: int = arguments.whole("interval", interval, 1, INT32)
        self.hysteresis: int = arguments.whole("hysteresis", hysteresis, 1, INT32)
        self.search: bool = arguments.flag("search", search)
        if self.growth <= 1:
            raise ValueError(f"growth must be greater than 1; found {self.growth!r}")
        if self.backoff >= 1:
            raise ValueError(f"backoff must be between 0 and 1; found {self.backoff!r}")
        if self.floor is not None and self.floor > self.init:
            raise ValueError(f"floor must not be greater than init; found floor={self.floor!r}, init={self.init!r}")
        if self.cap is not None and self.cap < self.init:
            raise ValueError(f"cap must not be less than init; found cap={self.cap!r}, init={self.init!r}")
        self.reset()

    @property
    def value(self) -> float:
        """The scale of the next step, a float; read from the device if it is there."""
        return float(to_host(self._state["value"]))

    @property
    def description(self) -> str:
        """The current scale as text, for messages; read from the device if it is there."""
        return f"the loss scale has come down to 2^{round(math.log2(self.value))}"

    @property
    def can_fall(self) -> Any:
        """Whether the scale is above its floor: a boolean array of shape () beside the scale; nothing is read."""
        return self._state["value"] > self.numbers()["floor"]

    def lower(self) -> None:
        """Divides the scale by four within a step, as if training had begun there; nothing is read."""
        value = self._state["value"]
        xp = backend.get_array_module(value)
        value = xp.asanyarray(xp.maximum(value * _SEARCH_BACKOFF, self.numbers()["floor"]))
        self._state = {**self._state, "value": value}

    def end_search(self) -> None:
        """Ends the search for a first scale permanently."""
        self.is_searching = False

    def reset(self) -> None:
        """Resets to the first step: the scale to ``init``, and all counters."""
        self._set(value=self.init, hysteresis_left=self.hysteresis)
        self.is_searching = self.search

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or loads the scale and its counters (the settings come from the program).

        A file of a run without ``search`` does not record whether gradients have ever been finite. The scale assumes
        that they have not; the caller may call :meth:`end_search`.
        """
        super().serialize(serializer)
        if isinstance(serializer, Deserializer):
            limits = self.numbers()  # the scale may have been saved with other limits
            value = min(max(self.value, limits["floor"]), limits["cap"])
            self._state = {**self._state, "value": np.array(value, np.float64)}
            self.is_searching = self.search
            with contextlib.suppress(KeyError, ValueError):  # Chainer's npz and HDF5 serializers: no such name
                self.is_searching = self.search and bool(stored(serializer, "searching", None))
        elif self.search:
            serializer("searching", self.is_searching)


def as_loss_scale(loss_scale):
    """Returns the loss scale object for ``"dynamic"``, a number, ``None`` or a loss scale object.

    Raises:
        TypeError: ``loss_scale`` is none of these.
        ValueError: the number is not a positive power of two.
    """
    if loss_scale is None:
        return NoLossScale()
    if isinstance(loss_scale, str) and loss_scale == "dynamic":
        return DynamicLossScale()
    if isinstance(loss_scale, (NoLossScale, StaticLossScale, DynamicLossScale)):
        return loss_scale
    if arguments.is_number(loss_scale):
        return StaticLossScale(arguments.power_of_two("loss_scale", loss_scale))
    found = arguments.found(loss_scale)
    raise TypeError(f"loss_scale must be 'dynamic', a number, None or a loss scale object; found {found}")
