"""A dynamic loss scale that the kernel ``update`` moves: its state on the device, and the arguments of the launch."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The state of a :class:`~mixprec.DynamicLossScale`, arrays of shape () on the device that a step moves in place.

    Attributes:
        value: the scale, float64.
        clean, hysteresis_left, overflows_in_row: counters, int32.
        growth, backoff, floor, cap: floats; ``floor`` and ``cap`` may be ``None``.
        interval, hysteresis: ints.
    """

    value: object
    clean: object
    hysteresis_left: object
    overflows_in_row: object
    growth: float
    backoff: float
    floor: float | None
    cap: float | None
    interval: int
    hysteresis: int


# Those of its attributes that no step moves; a DynamicLossScale has the same names.
SCALE_CONSTANTS = ("growth", "backoff", "floor", "cap", "interval", "hysteresis")


def arguments_of(scaling):
    """Returns what the kernel ``update`` gets of a :class:`Scaling`, or of ``None``.

    Returns:
        The four arrays of the state, or ``None`` for each; and growth, backoff, floor, cap as floats, interval and
        hysteresis as ints.
    """
    if scaling is None:
        return [None] * 4, [0.0] * 4 + [0] * 2
    state = [scaling.value, scaling.clean, scaling.hysteresis_left, scaling.overflows_in_row]
    floor = 0.0 if scaling.floor is None else scaling.floor
    cap = float("inf") if scaling.cap is None else scaling.cap
    constants = [float(x) for x in (scaling.growth, scaling.backoff, floor, cap)]
    return state, [*constants, scaling.interval, scaling.hysteresis]
