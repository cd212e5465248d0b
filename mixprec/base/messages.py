"""Text from outside in messages: names of files, keys and values of a config, words of another program's error."""

import difflib
import sys

_LIMIT = 1000  # characters: some lines of a terminal


class OneLineError(ValueError):
    """An error whose message is one printable line, whatever is quoted in it."""

    def __init__(self, message):
        super().__init__(one_line(message))


def printable(text):
    """Returns ``text`` in one line: what cannot be printed becomes an escape, as in :func:`repr`.

    Letters of any language stay. A line break, NUL, ESC, or what stands for a byte of a file name that is not UTF-8 (a
    lone surrogate, which no terminal can be sent) does not.

    Example:
        >>> print(printable("one" + chr(10) + "two, ü"))
        one\\ntwo, ü
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def text_of(error):
    """Returns ``str(error)``, and ``""`` where that raises itself, as it may in an exception of the user's."""
    try:
        return str(error)
    except BaseException:  # the error is what is to be said, whatever this one is
        return ""


def one_line(text, limit=_LIMIT):
    """Returns ``text`` in one printable line of at most ``limit`` characters.

    Args:
        text: anything with a ``str``, such as an exception.
        limit (int): where longer text is cut: in the middle, as the start names the culprit, and the end what to do.

    Example:
        >>> one_line("a very long line, with " + 100 * "x" + " in it", limit=40)
        'a very long line, with ...xxxxxxxx in it'
    """
    line = printable(text_of(text))
    if len(line) <= limit:
        return line
    tail = (limit - 3) * 2 // 5
    return f"{line[: limit - 3 - tail]}...{line[len(line) - tail :]}"


def encoding_hint(path):
    """Returns the end of a message about a path that is not found: that the encoding is the reason, where it may be.

    Args:
        path (str): whose letters are not ASCII where names of files are not UTF-8; for any other the end is empty.
    """
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8" or path.isascii():
        return ""
    return f"; Python takes names of files for {encoding} here: set PYTHONUTF8=1 if they are UTF-8"


def nearest(name, names, cutoff=0.6):
    """Returns the one of ``names`` that ``name`` most likely means, or ``None``; a cutoff of 1 ignores case only."""
    folded = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def hint(name):
    """Returns the end of a message that proposes ``name``; empty if that is ``None``."""
    return "" if name is None else f"; did you mean {name!r}?"
