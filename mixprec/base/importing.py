"""Loads objects by an import path, ``package.module:attribute``; every error is one line."""

import importlib
import os
import sys
import sysconfig
import traceback

from mixprec.base import working_folder
from mixprec.base.messages import OneLineError, hint, nearest, one_line, text_of

_LONGEST = 400  # characters of another library's message
_MIXPREC = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_LIBRARIES = tuple(os.path.join(sysconfig.get_path(key), "") for key in ("stdlib", "platstdlib", "purelib", "platlib"))


class ImportPathError(OneLineError):
    """An import path cannot be loaded; the message is one line."""


def load(module, attribute):
    """Imports a module, also from the working directory, and returns one of its attributes.

    The working directory comes last, so that a file in it cannot hide an installed module; but if Python itself has put
    it first, as with ``python -m``, it stays there.

    Args:
        module: dotted name of a module.
        attribute: dotted name in it.

    Returns:
        object

    Raises:
        ImportPathError: there is no such module, importing it raised any exception, including ``SystemExit``, or there
            is no such attribute. ``KeyboardInterrupt`` is not caught.
    """
    here = working_folder.path()
    if here is not None and not {"", here} & set(sys.path):
        sys.path.append(here)
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ImportPathError(_missing(error.name)) from error
        raise ImportPathError(f"importing {module} failed: {described(error)}") from error
    file = getattr(found, "__file__", None)
    where = f" in {working_folder.shown(file)}" if file else ""
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            near = nearest(name, [each for each in dir(found) if not each.startswith("_")])
            raise ImportPathError(f"{module} has no attribute {attribute}{where}{hint(near)}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ImportPathError(f"{module} has no attribute {attribute}: {described(error)}") from error
    return found


def described(error):
    """Returns class, message and source line of an exception from a user's code, as one line."""
    text, line = text_of(error), _line(error)
    if isinstance(error, SyntaxError) and error.filename:
        text, line = error.msg, f" ({working_folder.shown(error.filename)}, line {error.lineno})"
    text = one_line(" ".join(text.split()), _LONGEST)
    return f"{type(error).__name__}: {text}".rstrip(": ") + line


def _missing(name):
    parent, _, leaf = name.rpartition(".")
    if not parent:
        here = working_folder.path()
        near = nearest(name, [each.removesuffix(".py") for each in os.listdir(here)], 0.75) if here else None
        where = "in the working directory, in PYTHONPATH, or among the installed packages"
        return f"there is no module {name!r} {where}{hint(near)}"
    found = sys.modules.get(parent)
    where = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), None)
    return f"there is no module {leaf!r} in {parent}" + (f", which is {working_folder.shown(where)}" if where else "")


def _line(error):
    """Returns file and line of the user's code where an exception was raised, or of a library's line."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    outside = [each for each in frames if not each[0].startswith(("<frozen", _MIXPREC))]
    own = [each for each in outside if not each[0].startswith(_LIBRARIES)]
    if not outside:
        return ""
    file, line = (own or outside)[-1]
    return f" ({working_folder.shown(file)}, line {line})"
