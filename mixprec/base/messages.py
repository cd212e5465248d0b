"""Messages with text from outside: file names, keys and values of a config, errors of other libraries."""

import contextlib
import difflib
import os
import sys

_LIMIT = 1000  # characters: several lines of a terminal


class OneLineError(ValueError):
    """An error whose message is one printable line, whatever it quotes."""

    def __init__(self, message):
        super().__init__(one_line(message))


def printable(text):
    """Returns ``text`` in one line: unprintable characters are escaped, as in :func:`repr`.

    Letters of any language stay. Line breaks, NUL, ESC, and lone surrogates, which represent bytes of file names that
    are not UTF-8 and cannot be sent to a terminal, are escaped.

    Example:
        >>> print(printable("one" + chr(10) + "two, ü"))
        one\\ntwo, ü
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def text_of(error):
    """Returns ``str(error)``, or ``""`` if that raises, as it may for a user's exception."""
    try:
        return str(error)
    except BaseException:  # the original error matters, whatever this one is
        return ""


def one_line(text, limit=_LIMIT):
    """Returns ``text`` in one printable line of at most ``limit`` characters.

    Args:
        text: anything with a ``str``, such as an exception.
        limit (int): longer text is shortened in the middle, as the start names the cause, and the end says what to do.

    Example:
        >>> one_line("a very long line, with " + 100 * "x" + " in it", limit=40)
        'a very long line, with ...xxxxxxxx in it'
    """
    line = printable(text_of(text))
    if len(line) <= limit:
        return line
    tail = (limit - 3) * 2 // 5
    return f"{line[: limit - 3 - tail]}...{line[len(line) - tail :]}"


@contextlib.contextmanager
def reworded(error_of):
    """A context in which an ``OSError`` becomes the error that a function makes of the reason of the system."""
    try:
        yield
    except OSError as error:
        raise error_of(error.strerror) from error


def encoding_hint(path):
    """Returns the end of a message about a missing path that explains a possible encoding problem; may be empty.

    Args:
        path (str): the path. The result is empty if the path is ASCII, or file names are UTF-8.
    """
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8" or path.isascii():
        return ""
    return f"; Python takes names of files for {encoding} here: set PYTHONUTF8=1 if they are UTF-8"


def nearest(name, names, cutoff=0.6):
    """Returns the closest match of ``name`` in ``names``, or ``None``; a cutoff of 1 ignores only case."""
    folded = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def beside(path):
    """Returns the end of a message about a missing file or folder that suggests one with a similar name beside it."""
    folder, name = os.path.split(path.rstrip(os.sep))
    try:
        near = nearest(name, os.listdir(folder or os.curdir), 0.75)
    except (OSError, ValueError):  # there is no such folder, or it is not a path
        near = None
    return hint(near and os.path.join(folder, near))


def counted(number, noun, plural=None):
    """Returns a number and its noun: ``1 image``, ``2 images``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def hint(name):
    """Returns the end of a message that suggests ``name``; empty if ``name`` is ``None``."""
    return "" if name is None else f"; did you mean {name!r}?"
