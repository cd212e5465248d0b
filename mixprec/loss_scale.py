"""Loss scaling: three classes with the same methods, so that their caller need not know which one it has.

:class:`~mixprec.MixedPrecisionOptimizer` makes one of its ``loss_scale`` argument, or takes yours. It asks for the
factor before ``backward``, and lets the scale move at the end of each ``update()``.

Small gradients flush to zero in float16. Multiplying the loss by a power of two moves all of them up by the same
number of binades without changing a bit of their mantissas (Micikevicius et al. 2018, section 3.2). The methods:

- ``factor(device)``: what to multiply the loss by, on the device; ``None`` for nothing.
- ``adjust(overflow)``: advances the state by one step, after its gradients were checked; all three count overflows in
  a row, which is what :mod:`mixprec.patience` is about.
- ``reset()``: back to the first step.
- ``serialize(serializer)``: saves or loads the state, in Chainer's manner.

``value`` is the scale of the next step as the host sees it, ``patience`` the number of overflows in a row that are too
many, ``course`` where the scale has come, in words or ``None``, and ``is_searching`` whether an overflow in the next
step lets its backward pass run again, at a smaller scale.

An object belongs to one optimizer, whose steps it counts.
"""

import contextlib
import math
from typing import Any

import numpy as np
from chainer import AbstractSerializer, Deserializer, backend

from mixprec import arguments
from mixprec.backends.transfers import stored, to_host
from mixprec.bounds import INT32
from mixprec.fixed_scales import NoLossScale, StaticLossScale, check_device
from mixprec.patience import Patience, check_serializer

_SEARCH_BACKOFF = 0.25


class LossScaleExhausted(RuntimeError):
    """Overflows in so many steps in a row that waiting cannot help: the network itself has diverged.

    Any loss scale counts them, :class:`NoLossScale` and :class:`StaticLossScale`, too. With a static one the message
    names the scale, which may be too large.
    """


class DynamicLossScale(Patience):
    """A scale that grows while gradients are finite and backs off when they are not.

    With floor and cap out of the way and ``hysteresis=1`` the sequence is that of PyTorch's ``GradScaler``::

        on overflow:   clean = 0; left = max(left - 1, 0)
                       if left == 0: value = max(floor, value * backoff)
        otherwise:     clean = clean + 1
                       if clean == interval: value = min(cap, value * growth); clean = 0; left = hysteresis

    The state is a handful of arrays of shape () that live where the gradients are checked, so that a step on a GPU
    moves them, and the host need not read them.

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

    state = ("value", "clean", "hysteresis_left", "overflows_in_row")  # value in float64, the others in int32

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
        return float(to_host(self._value))

    @property
    def course(self) -> str:
        """Where the scale is, in words; reads it from the device, too."""
        return f"the loss scale has come down to 2^{round(math.log2(self.value))}"

    def factor(self, device: backend.Device) -> Any:
        """Returns the scale as a float32 array of shape () on ``device`` (a :class:`chainer.backend.Device`)."""
        check_device(device)
        return device.send(self._value).astype(np.float32)

    def adjust(self, overflow: Any) -> None:
        """Advances the scale by one step.

        Args:
            overflow: whether a gradient of the step was not finite: a bool, or a boolean array of shape (). The state
                moves to the device of the array, and nothing is read. The new value takes effect on the next step.

        Raises:
            TypeError: ``overflow`` is neither.
        """
        if self._is_clean_on_host(overflow) and self._clean + 1 < self.interval:
            self._clean = np.array(self._clean + 1, np.int32)
            self._forget_count()
            return
        overflow = self._count(overflow)
        device = backend.get_device_from_array(overflow)
        xp = device.xp
        value, clean, left = (device.send(state) for state in (self._value, self._clean, self._hysteresis_left))
        clean = clean + 1
        full = clean == self.interval
        left = xp.where(overflow, xp.maximum(left - 1, 0), xp.where(full, self.hysteresis, left))
        less = value * self.backoff if self.floor is None else xp.maximum(value * self.backoff, self.floor)
        more = value * self.growth if self.cap is None else xp.minimum(value * self.growth, self.cap)
        self._value = xp.where(overflow, xp.where(left == 0, less, value), xp.where(full, more, value))
        self._clean = xp.where(overflow | full, 0, clean).astype(np.int32, copy=False)
        self._hysteresis_left = left.astype(np.int32, copy=False)

    @property
    def is_searching(self) -> bool:
        """Whether no gradients have been finite yet, and :meth:`lower` may be called; known to the host."""
        return self._is_searching

    @property
    def can_fall(self) -> Any:
        """Whether the scale is above its floor: a boolean array of shape (), where the scale is; nothing is read."""
        return self._value > (0 if self.floor is None else self.floor)

    def lower(self) -> None:
        """Goes down to a quarter of the scale within a step, as if training had begun there; nothing is read."""
        xp = backend.get_array_module(self._value)
        self._value = xp.maximum(self._value * _SEARCH_BACKOFF, 0 if self.floor is None else self.floor)

    def end_search(self) -> None:
        """Ends the search for a first scale, for good."""
        self._is_searching = False

    def reset(self) -> None:
        """Goes back to the first step: ``init``, and all counters as in the beginning."""
        self._set(self.init, 0, self.hysteresis)
        self._forget_count()
        self._is_searching = self.search

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or loads the scale and its counters (the settings come from the program).

        A file of a run without ``search`` does not say whether gradients have been finite; it is taken that they have
        not, and for the caller to call :meth:`end_search` if it knows better.
        """
        check_serializer(serializer)
        state = (
            float(stored(serializer, "value", self._value)),
            int(stored(serializer, "clean", self._clean)),
            int(stored(serializer, "hysteresis_left", self._hysteresis_left)),
        )
        self._serialize_count(serializer)
        if isinstance(serializer, Deserializer):  # what is saved stays where it is: a graph may hold it
            self._set(self._bounded(state[0]), *state[1:])
            self._is_searching = self.search
            with contextlib.suppress(KeyError, ValueError):  # of Chainer's npz and HDF5 serializers: no such name
                self._is_searching = self.search and bool(stored(serializer, "searching", None))
        elif self.search:
            serializer("searching", self._is_searching)

    def _bounded(self, value):
        """Returns a scale that was saved with another floor or cap, between those of this one."""
        value = value if self.floor is None else max(value, self.floor)
        return value if self.cap is None else min(value, self.cap)

    def _set(self, value, clean, hysteresis_left):
        self._value = np.array(value, np.float64)
        self._clean = np.array(clean, np.int32)
        self._hysteresis_left = np.array(hysteresis_left, np.int32)


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
