"""The loss scale that the kernel ``update`` moves: its state on the device, and the arguments of the launch."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The state of a loss scale, arrays of shape () on the device that a step moves in place.

    All but ``overflows_in_row`` is ``None`` if the scale is no :class:`~mixprec.DynamicLossScale`.

    Attributes:
        value: the scale, float64.
        clean, hysteresis_left, overflows_in_row: counters, int32.
        growth, backoff, floor, cap: floats; ``floor`` and ``cap`` may be ``None``.
        interval, hysteresis: ints.
    """

    value: object = None
    clean: object = None
    hysteresis_left: object = None
    overflows_in_row: object = None
    growth: float | None = None
    backoff: float | None = None
    floor: float | None = None
    cap: float | None = None
    interval: int | None = None
    hysteresis: int | None = None

    @classmethod
    def of(cls, scaler, hold):
        """Returns the state for a loss scale, whose arrays ``hold`` puts on the device."""
        return cls(**scaler.held_by(hold), **constants_of(scaler))


def constants_of(scaler):
    """Returns by name what no step moves of a loss scale, and a launch gets as numbers."""
    names = ("growth", "backoff", "floor", "cap", "interval", "hysteresis")
    return {name: getattr(scaler, name) for name in names if hasattr(scaler, name)}


def arguments_of(scaling):
    """Returns what the kernel ``update`` gets of a :class:`Scaling`, or of ``None``.

    Returns:
        The four arrays of the state, or ``None`` for each; and growth, backoff, floor, cap as floats, interval and
        hysteresis as ints.
    """
    if scaling is None:
        scaling = Scaling()
    state = [scaling.value, scaling.clean, scaling.hysteresis_left, scaling.overflows_in_row]
    if scaling.value is None:
        return state, [0.0] * 4 + [0] * 2
    floor = 0.0 if scaling.floor is None else scaling.floor
    cap = float("inf") if scaling.cap is None else scaling.cap
    constants = [float(x) for x in (scaling.growth, scaling.backoff, floor, cap)]
    return state, [*constants, scaling.interval, scaling.hysteresis]
