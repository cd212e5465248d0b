"""State that a call of a link reads first: whether the link is converted, and what this thread is doing."""

import threading

from mixprec.precision.without_masters import CONVERSION


class _Active(threading.local):
    """The state of this thread.

    Attributes:
        scope: the :class:`~mixprec.rewrite.scope.Scope` of the call of a converted model, or ``None``.
        backward: ``chainer.config.enable_backprop`` of the backward pass, or ``None``.
    """

    scope = None
    backward = None


active = _Active()


def state_of(link):
    """Returns the :class:`~mixprec.rewrite.convert.LinkState` of a link, or ``None`` if it is not converted."""
    return link.__dict__.get(CONVERSION)


def set_state(link, state):
    """Marks a link as converted, or with ``None`` as plain."""
    if state is None:
        link.__dict__.pop(CONVERSION, None)
    else:
        link.__dict__[CONVERSION] = state
