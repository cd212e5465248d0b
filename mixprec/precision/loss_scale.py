"""Loss scaling: three classes with the same methods, so that their caller need not know which one it has.

:class:`~mixprec.MixedPrecisionOptimizer` makes one of its ``loss_scale`` argument, or takes yours. It asks for the
factor before ``backward``, and lets the scale move at the end of each ``update()``.

Small gradients flush to zero in float16. Multiplying the loss by a power of two moves all of them up by the same
number of binades without changing a bit of their mantissas (Micikevicius et al. 2018, section 3.2). The methods:

- ``factor(device)``: what to multiply the loss by, on the device; ``None`` for nothing.
- ``adjust(overflow)``: advances the state by one step, after its gradients were checked
  (:mod:`mixprec.precision.step_state`).
- ``reset()``: back to the first step.
- ``serialize(serializer)``: saves or loads the state, in Chainer's manner.

``value`` is the scale of the next step as the host sees it, ``patience`` the number of overflows in a row that are too
many, and ``course`` where the scale has come, in words or ``None``.

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
    """Overflows in so many steps in a row that waiting cannot help: the network itself has diverged.

    Any loss scale counts them, :class:`NoLossScale` and :class:`StaticLossScale`, too. With a static one the message
    names the scale, which may be too large.

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

    How it moves stands in :attr:`rules`. With floor and cap out of the way and ``hysteresis=1`` the sequence is that of
    PyTorch's ``GradScaler``.

    Args:
        init: the first scale.
        growth: factor after ``interval`` clean steps in a row, greater than 1.
        backoff: factor on an overflow, between 0 and 1.
        interval: number of clean steps in a row before the scale grows.
        floor: the scale never falls below it; ``None`` switches that off.
        cap: the scale never rises above it; ``None`` switches that off.
        hysteresis: number of overflows, since the scale last grew, from which on it backs off.
        patience: number of overflows in a row after which training ends with :class:`LossScaleExhausted`; ``None``
            switches that off.
        search: whether the first steps are spared: until gradients are finite for the first time, ``update(lossfun)``
            runs the backward pass again at a quarter of the scale, at most 8 times, rather than skip the step.
            ``docs/numerics.md`` says where it does not.

    All scales and factors are powers of two. Counters on a device are int32: ``interval``, ``hysteresis`` and
    ``patience`` are at most 2^31 - 1.

    Raises:
        ValueError: naming the argument that is out of its range.

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
    def course(self) -> str:
        """Where the scale is, in words; reads it from the device, too."""
        return f"the loss scale has come down to 2^{round(math.log2(self.value))}"

    @property
    def can_fall(self) -> Any:
        """Whether the scale is above its floor: a boolean array of shape (), where the scale is; nothing is read."""
        return self._state["value"] > self.numbers()["floor"]

    def lower(self) -> None:
        """Goes down to a quarter of the scale within a step, as if training had begun there; nothing is read."""
        value = self._state["value"]
        xp = backend.get_array_module(value)
        value = xp.asanyarray(xp.maximum(value * _SEARCH_BACKOFF, self.numbers()["floor"]))
        self._state = {**self._state, "value": value}

    def end_search(self) -> None:
        """Ends the search for a first scale, for good."""
        self.is_searching = False

    def reset(self) -> None:
        """Goes back to the first step: ``init``, and all counters as in the beginning."""
        self._set(value=self.init, hysteresis_left=self.hysteresis)
        self.is_searching = self.search

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or loads the scale and its counters (the settings come from the program).

        A file of a run without ``search`` does not say whether gradients have been finite; it is taken that they have
        not, and for the caller to call :meth:`end_search` if it knows better.
        """
        super().serialize(serializer)
        if isinstance(serializer, Deserializer):
            limits = self.numbers()  # the scale may have been saved with others
            value = min(max(self.value, limits["floor"]), limits["cap"])
            self._state = {**self._state, "value": np.array(value, np.float64)}
            self.is_searching = self.search
            with contextlib.suppress(KeyError, ValueError):  # of Chainer's npz and HDF5 serializers: no such name
                self.is_searching = self.search and bool(stored(serializer, "searching", None))
        elif self.search:
            serializer("searching", self.is_searching)


def as_loss_scale(loss_scale):
    """Returns the loss scale object that ``"dynamic"``, a number, ``None`` or such an object stands for.

    Raises:
        TypeError: it is none of those.
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
