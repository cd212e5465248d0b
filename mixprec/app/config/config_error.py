"""The error for a config that cannot be used, and the parts of its message."""

import reprlib

from mixprec.base.messages import OneLineError


class ConfigError(OneLineError):
    """A config that cannot be used.

    The message is one line: the file with the line number, or ``--set``; the dotted key; the value found; the allowed
    values; and the nearest name if there is one.

    Example:
        >>> from mixprec.app import config
        >>> from mixprec.recipes import config_path
        >>> try:
        ...     config.load(config_path("digits.yaml"), ["training.epochs=many"])
        ... except config.ConfigError as error:
        ...     print(error)
        --set: 'training.epochs' is 'many'; allowed: an integer >= 1 and <= 1000000
    """

    def __init__(self, *parts):
        super().__init__(": ".join(parts))


def location(key, overrides, path):
    """Returns where the value of a key comes from, for messages: ``--set`` if an override has it, or else the file.

    Example:
        >>> location("optimizer.lr", ["optimizer.lr=0.1"], "mine.yaml"), location(None, [], "mine.yaml")
        ('--set', 'mine.yaml')
    """
    return "--set" if key in [text.partition("=")[0].strip() for text in overrides] else path


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = 80
_REPR.maxother = 80


def shown(value):
    """Returns a config's value as one short line, for messages.

    Example:
        >>> shown(None), shown(True), shown([1, "two"]), shown({"a": 0.5})
        ('null', 'true', "[1, 'two']", "{'a': 0.5}")
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(shown(item) for item in value[:8])}{', ...' if len(value) > 8 else ''}]"
    if isinstance(value, dict):
        items = [f"{shown(key)}: {shown(item)}" for key, item in list(value.items())[:8]]
        return f"{{{', '.join(items)}{', ...' if len(value) > 8 else ''}}}"
    return _REPR.repr(value)
