"""The hyperparameters that the optimizers of this package are given: checked, as Python's numbers."""

import math

from mixprec import arguments

# From where, and to below what; the others may be anything finite.
_RANGES = {
    "momentum": (0.0, 1.0),
    "beta1": (0.0, 1.0),
    "beta2": (0.0, 1.0),
    "trust_coefficient": (0.0, math.inf),
    "eps": (0.0, math.inf),
}
_FLAGS = ("adapt", "nesterov")


def set_all(hyperparam, **given):
    """Sets hyperparameters.

    Raises:
        TypeError: ``adapt`` or ``nesterov`` is no bool.
        ValueError: another one is no number, or out of its range.
    """
    for name, value in given.items():
        if name in _FLAGS:
            setattr(hyperparam, name, arguments.flag(name, value))
        else:
            setattr(hyperparam, name, arguments.number(name, value, *_RANGES.get(name, ())))


def set_given(hyperparam, **given):
    """Sets those hyperparameters that are not ``None``, likewise."""
    set_all(hyperparam, **{name: value for name, value in given.items() if value is not None})
