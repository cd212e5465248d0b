"""The attribute of a link that makes it a converted one.

``convert`` and ``revert`` set it. The replaced ``Link.__call__`` looks at it in each call of a link.
"""

from mixprec.without_masters import CONVERSION


def state_of(link):
    """Returns the :class:`~mixprec.rewrite.conversion.LinkState` of a link, or ``None`` if it is not converted."""
    return link.__dict__.get(CONVERSION)


def set_state(link, state):
    """Makes a link a converted one, or a plain one with ``None``."""
    if state is None:
        link.__dict__.pop(CONVERSION, None)
    else:
        link.__dict__[CONVERSION] = state
