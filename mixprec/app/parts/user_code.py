"""Imports and calls objects that a config names by an import path, ``package.module:attribute``; errors are one line.

The modules for networks, losses and extensions of the user's own call these functions.
"""

import inspect
import os

import chainer

from mixprec.app.config import ConfigError
from mixprec.base import importing
from mixprec.base.declaration import IMPORT_PATH
from mixprec.base.messages import hint, nearest


def load(named, path, known=()):
    """Returns the object at an import path.

    Args:
        named: the beginning of a message: the key and its value.
        path: the import path, or another value of the key.
        known: names that the key also accepts.

    Raises:
        ConfigError: it is not an import path, or there is nothing at it.
    """
    module, _, attribute = path.partition(":")
    file = module.endswith(".py") or os.sep in module
    if file or not _is_dotted(module) or not _is_dotted(attribute):
        near = f"{_dotted(module)}:{attribute}" if file and _is_dotted(_dotted(module)) else nearest(path, known)
        names = f"{', '.join(known)}, or " if known else ""
        raise ConfigError(f"{named}; allowed: {names}{IMPORT_PATH.text}{hint(near)}")
    try:
        return importing.load(module, attribute)
    except importing.ImportPathError as error:
        raise ConfigError(named, str(error)) from error


def check_call(named, function, called, *arguments):
    """Raises :class:`ConfigError` unless a callable accepts these arguments, which ``called`` describes."""
    signature = signature_of(function)
    try:
        if signature is not None:
            signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(named, f"it is called with {called}, and takes {signature}: {error}") from error


def call(named, called, function, *arguments, **keywords):
    """Calls a callable, and returns its result.

    Args:
        named: as for :func:`load`.
        called: description of the call.
        function: the callable.
        arguments, keywords: its arguments.

    Raises:
        ConfigError: it raised an exception, including ``SystemExit``.
    """
    try:
        return function(*arguments, **keywords)
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ConfigError(named, f"{called} it raises {importing.described(error)}") from error


def signature_of(function):
    """Returns the signature of a callable, or ``None`` if it is unknown."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def kind(value):
    """Returns the class of a value and, if it is a variable or an array, its shape and dtype, for messages."""
    if isinstance(value, (chainer.Variable, *chainer.get_array_types())):
        return f"{type(value).__name__} {value.shape} {value.dtype}"
    return f"{type(value).__name__}"


def _is_dotted(text):
    return all(map(str.isidentifier, text.split(".")))


def _dotted(path):
    """Returns the name under which a file is imported from the working directory."""
    return os.path.relpath(path.removesuffix(".py")).replace(os.sep, ".")
