"""Random numbers of CuPy: they cannot be drawn again, and a part that is called again must not draw others."""

import contextlib
import functools
import threading

from mixprec.base.scoped import scoped
from mixprec.compat.registry import patch


class _Now(threading.local):
    """Attribute ``label``: of what is called again in this thread, or ``None``."""

    label = None


_now = _Now()


def install():
    """Applies the patches, if there is a CuPy that has what they replace."""
    for each in (random_state, ratio_of_rnn):
        with contextlib.suppress(ImportError, AttributeError):
            each.apply()


def refused(label):
    """Inside of the block it is an error to draw random numbers from CuPy.

    Args:
        label: of what is called again.
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
            f"{_now.label}: it draws random numbers from CuPy, which cannot be drawn again: leave what draws them "
            f"outside"
        )
