"""Announcements: warnings about slow or unexpected code paths, each logged once.

All parts of mixprec call :func:`announce` where they take such a path, even in every step.
"""

import logging
import sys

_LIBRARIES = {"chainer", "chainermn", "mixprec"}
# Networks that come with mixprec count as the user's code: a message that names a line of theirs helps as much.
_NETWORKS = "mixprec.recipes.models"
_logger = logging.getLogger("mixprec")
_said = set()


def announce(message, *arguments, key=None):
    """Logs a warning, once for each combination of message and arguments.

    Args:
        message: with a ``%s`` for each argument.
        arguments: the values, hashable.
        key: hashable value that replaces the arguments in this comparison, if some of them change from call to call.
    """
    said = message, arguments if key is None else key
    if said not in _said:
        _said.add(said)
        _logger.warning(message, *arguments)


def is_of(module, libraries):
    """Whether a module, by its name, belongs to one of some libraries, and not to the networks of mixprec's recipes."""
    is_network = f"{module}.".startswith(f"{_NETWORKS}.")
    return not is_network and any(f"{module}.".startswith(f"{library}.") for library in libraries)


def place_of_call():
    """Returns the innermost line that is neither Chainer's nor mixprec's, and the link that it calls, for messages.

    Returns:
        str: ``"model.py:12"``, or ``"train.py:40 (Linear fc1)"`` if Chainer calls a link, as ``Sequential`` does.
    """
    frame, link = sys._getframe(1), None
    while frame.f_back is not None and is_of((module := frame.f_globals.get("__name__", "")), _LIBRARIES):
        if link is None and module == "chainer.link" and frame.f_code.co_name == "__call__":
            link = frame.f_locals.get("self")
        frame = frame.f_back
    called = "" if link is None else f" ({' '.join(filter(None, (type(link).__name__, link.name)))})"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}{called}"
