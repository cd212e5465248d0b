"""The keys of a request: names, allowed values, and errors."""

import dataclasses
import types
from collections.abc import Callable

from mixprec.app.config.config_error import shown
from mixprec.base.messages import OneLineError, hint, nearest

_REQUIRED = object()


class RequestError(OneLineError):
    """An invalid request; the message is one line and names the key."""


@dataclasses.dataclass(frozen=True)
class Field:
    """The allowed values of a key of a request.

    Attributes:
        wanted: description for messages.
        holds: function from a value of JSON to whether it is allowed.
        default: value of a missing key; by default the key must not be missing. If it is ``None``, the key may be null,
            too.
    """

    wanted: str
    holds: Callable
    default: object = _REQUIRED


def path(what, default=_REQUIRED):
    """Returns the field of a path of a file or folder."""
    return Field(what, _is_path, default)


def text(what, longest):
    """Returns the field of a text of at most ``longest`` characters."""
    return Field(what, lambda value: isinstance(value, str) and 0 < len(value) <= longest)


def whole(low, high, default=_REQUIRED):
    """Returns the field of a whole number from ``low`` to ``high``."""
    return Field(f"a whole number from {low} to {high}", lambda value: _is_whole(value, low, high), default)


def wholes(high, most):
    """Returns the field of a list of 1 to ``most`` whole numbers from 0 to ``high``."""
    return Field(
        f"a list of 1 to {most} whole numbers from 0 on",
        lambda value: (
            isinstance(value, list) and 0 < len(value) <= most and all(_is_whole(each, 0, high) for each in value)
        ),
    )


def overrides():
    """Returns the field of a list of ``"section.key=value"``, which may be missing."""
    holds = lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value)  # noqa: E731
    return Field('a list of "section.key=value"', holds, ())


def parse(task, values, fields):
    """Returns the values of a request as attributes.

    Args:
        task (str): name of the task, for messages.
        values: parsed JSON.
        fields: dict from key to :class:`Field`.

    Raises:
        RequestError: it is not an object, a key is unknown or missing, or a value is not allowed.
    """
    if not isinstance(values, dict):
        raise RequestError(f"{task}: found {shown(values)}; wanted: a JSON object with {', '.join(fields)}")
    for key in values:
        if key not in fields:
            near = hint(nearest(key, fields))
            raise RequestError(f"{task}: unknown key {shown(key)}; allowed: {', '.join(fields)}{near}")
    parsed = {}
    for key, field in fields.items():
        if key not in values and field.default is _REQUIRED:
            raise RequestError(f"{task}: '{key}' is missing; wanted: {field.wanted}")
        value = parsed[key] = values.get(key, field.default)
        may_be_null = field.default is None
        if key in values and not (field.holds(value) or (may_be_null and value is None)):
            wanted = f"{field.wanted}, or null" if may_be_null else field.wanted
            raise RequestError(f"{task}: '{key}' is {shown(value)}; wanted: {wanted}")
    return types.SimpleNamespace(**parsed)


def _is_path(value):
    return isinstance(value, str) and value != "" and "\0" not in value


def _is_whole(value, low, high):
    return type(value) is int and low <= value <= high
