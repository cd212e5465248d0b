"""What is wrong with data, in one line."""


class DataError(ValueError):
    """The data, or how they are to be read, is not usable; the message is one line that names the culprit."""


def printable(text):
    """Returns ``text`` in one line: what cannot be printed, such as a newline in a file name, becomes an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def and_more(count):
    """Returns `` (and 3 more)`` for the first of four."""
    return f" (and {count - 1} more)" if count > 1 else ""
