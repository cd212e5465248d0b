"""Announcements: a path that is slower than it could be is logged once, by name.

All parts of mixprec call :func:`announce` where they take such a path, also in every step.
"""

import logging

_logger = logging.getLogger("mixprec")
_said = set()


def announce(message, *arguments, key=None):
    """Logs a warning, once for each combination of message and arguments.

    Args:
        message: with a ``%s`` for each argument.
        arguments: what goes there, hashable.
        key: what decides instead of the arguments, if some of them change from call to call.
    """
    said = message, arguments if key is None else key
    if said not in _said:
        _said.add(said)
        _logger.warning(message, *arguments)
