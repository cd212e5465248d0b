"""Random numbers of CuPy: they cannot be reproduced, so a recomputed part must not draw any."""

import contextlib
import functools
import threading

from mixprec.base.scoped import scoped
from mixprec.compat.registry import patch


class _Now(threading.local):
    """Attribute ``label``: label of the part that is being called again in this thread, or ``None``."""

    label = None


_now = _Now()


def install():
    """Applies the patches, if CuPy is there and has the attributes that they replace."""
    for each in (random_state, ratio_of_rnn):
        with contextlib.suppress(ImportError, AttributeError):
            each.apply()


def refused(label):
    """A context in which drawing random numbers from CuPy is an error.

    Args:
        label: label of the part that is called again.
    """
    return scoped(_now, label=label)


@patch("cupy.random._generator:get_random_state", when="mixprec.recompute")
def random_state(original):
    """Without it a recomputed part that draws from cupy.random draws other numbers, and gradients are wrong."""

    @functools.wraps(original)
    def get_random_state(*args, **kwargs):
        _refuse()
        return original(*args, **kwargs)

    return get_random_state


@patch("cupy.cudnn:DropoutStates.set_dropout_ratio", when="mixprec.recompute")
def ratio_of_rnn(original):
    """Without it the dropout in a recomputed RNN of cuDNN drops other elements, and gradients are wrong."""

    @functools.wraps(original)
    def set_dropout_ratio(self, dropout_ratio):
        if dropout_ratio:
            _refuse()
        return original(self, dropout_ratio)

    return set_dropout_ratio


def _refuse():
    if _now.label is not None:
        raise RuntimeError(
            f"{_now.label}: it draws random numbers from CuPy, which cannot be reproduced: leave what draws them "
            f"outside"
        )
