"""Announcements: a path that is slower than it could be is logged once, by name.

All parts of mixprec call :func:`announce` where they take such a path, also in every step.
"""

import logging

_logger = logging.getLogger("mixprec")
_said = set()


def announce(message, *arguments):
    """Logs a warning, once for each combination of message and arguments.

    Args:
        message: with a ``%s`` for each argument.
        arguments: what goes there, hashable.
    """
    if (message, arguments) not in _said:
        _said.add((message, arguments))
        _logger.warning(message, *arguments)
