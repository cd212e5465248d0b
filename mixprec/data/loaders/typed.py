"""Frozen settings of loaders, converted to their declared types: snapshots hold them as JSON."""

import dataclasses
import types
import typing


class Typed:
    """Base of a frozen dataclass: numbers, flags and tuples are converted to their declared types."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _as(field.type, getattr(self, field.name)))

    @classmethod
    def of(cls, section, **others):
        """Returns these settings from an object with attributes of the same names, and from further arguments."""
        names = {field.name for field in dataclasses.fields(cls)} - others.keys()
        return cls(**{name: getattr(section, name) for name in names}, **others)


def _as(kind, value):
    if isinstance(kind, types.UnionType):
        return value if value is None else _as(typing.get_args(kind)[0], value)
    if typing.get_origin(kind) is tuple:
        return tuple(_as(typing.get_args(kind)[0], each) for each in value)
    return kind(value) if kind in (bool, int, float) else value


def impossible(settings, kind=""):
    """Yields a message for each value outside the choices and limits of its field.

    Args:
        settings (Typed): The settings.
        kind (str): Words before the limits.
    """
    for field in dataclasses.fields(settings):
        value, declared = getattr(settings, field.name), {"choices": (), "limit": None, **field.metadata}
        choices, limit = declared["choices"], declared["limit"]
        if choices and value not in choices:
            yield f"{field.name} {value!r}: must be one of {', '.join(choices)}"
        if limit is not None and not (limit.holds(value) and _fits(field.type, value)):
            words = limit.text if limit.ends is None else f"{kind}{limit.ends[0]} to {limit.ends[1]}"
            yield f"{field.name} {value}: must be {words}"


def _fits(kind, value):
    return not isinstance(value, tuple) or ... in typing.get_args(kind) or len(value) == len(typing.get_args(kind))
