"""Declarations of keys: type, default, help and limits in one place, for configs, for loaders and for the reference.

The sections of the schema, and settings of loaders that are also keys, call :func:`key` for each key at import.
"""

import dataclasses
import math
import re
import sys
import types
import typing
from collections.abc import Callable

from mixprec.base.bounds import LARGEST_RATE, LARGEST_SCALE, SEVERAL, SMALLEST_RATE, SMALLEST_SCALE
from mixprec.base.messages import nearest
from mixprec.base.vocabulary import meant


@dataclasses.dataclass(frozen=True)
class Limit:
    """A condition on a value of the right type.

    Attributes:
        text: the condition, to follow the type's name (``">= 1"``).
        holds: function that tells whether a value satisfies it.
        ends: the smallest and the largest number, or ``None`` if the condition is not a closed interval.
        near: function from a value that does not satisfy it to the one that is most likely meant, or ``None``.
    """

    text: str
    holds: Callable[[typing.Any], bool]
    ends: tuple | None = None
    near: Callable[[typing.Any], str | None] = lambda value: None


def between(low, high):
    """Returns the limit of a number, or of each number of a list or a mapping, from ``low`` to ``high``."""
    return Limit(
        f">= {low} and <= {high}", lambda value: all(low <= number <= high for number in _numbers(value)), (low, high)
    )


def below(low, high):
    """Returns the limit from ``low`` to below ``high``, as :func:`between`."""
    return Limit(f">= {low} and < {high}", lambda value: all(low <= number < high for number in _numbers(value)))


def above(low, high):
    """Returns the limit from above ``low`` to ``high``, as :func:`between`."""
    return Limit(f"> {low} and <= {high}", lambda value: all(low < number <= high for number in _numbers(value)))


def matching(pattern, text, **more):
    """Returns the limit of strings that fully match a regular expression, which ``text`` describes."""
    return Limit(f"of the form {text}", lambda value: re.fullmatch(pattern, value) is not None, **more)


def power_of_two(text="from 2^-126 to 2^126", low=SMALLEST_SCALE, high=LARGEST_SCALE):
    """Returns the limit of a loss scale, or of a factor on one."""
    return Limit(f"that is a power of two {text}", lambda value: low <= value <= high and math.frexp(value)[0] == 0.5)


def _numbers(value):
    if isinstance(value, Pairs):
        return [number for _, number in value]
    return value if isinstance(value, tuple) else (value,)


class Pairs(tuple):
    """A mapping from strings to numbers in YAML, as pairs in the order of the file, which is significant."""


def _as_import_path(value):
    """Returns ``package.module.function`` with the colon that an import path has."""
    value = value.replace("/", ".") if isinstance(value, str) else ""
    module, _, name = value.rpartition(".")
    is_dotted = module and name != "py" and all(map(str.isidentifier, value.split(".")))
    return f"{module}:{name}" if is_dotted else None


def _as_import_paths(value):
    """Returns the list that is meant by one import path, or by paths that lack their colons, or ``None``."""
    values = value if isinstance(value, list) else [value]
    found = [each if ":" in str(each) else _as_import_path(each) for each in values]
    return f"[{', '.join(found)}]" if found and all(isinstance(each, str) for each in found) else None


PATH = Limit("that is not empty", lambda value: value != "")
IMPORT_PATH = Limit("an import path, package.module:function", lambda value: ":" in value, near=_as_import_path)
IMPORTS = Limit(
    f"that are import paths, package.module:Extension, at most {SEVERAL} of them",
    lambda value: len(value) <= SEVERAL and all(map(IMPORT_PATH.holds, value)),
    near=_as_import_paths,
)
RATE = between(SMALLEST_RATE, LARGEST_RATE)
INTERVAL = matching(
    r"[1-9][0-9]{0,8} (epochs?|iterations?)", "'N epochs' or 'N iterations', with N from 1 to 999999999"
)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition on several keys together.

    Attributes:
        keys: dotted names of the keys.
        text: the condition, for messages and the reference.
        holds: function that tells whether a config satisfies it.
        near: function from a config that does not satisfy it to the value that is most likely meant, or ``None``.
    """

    keys: tuple[str, ...]
    text: str
    holds: Callable[[typing.Any], bool]
    near: Callable[[typing.Any], str | None] = lambda config: None


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a config file.

    Attributes:
        name: dotted name, ``section.key``.
        type: ``str``, ``int``, ``float``, ``bool``, a tuple of ``float`` (``tuple[float, ...]`` for any number) or of
            ``str``, :class:`Pairs`, or one of these ``| None``; ``str | float`` is either.
        default: its default, or ``dataclasses.MISSING`` if it must be given.
        help: one line for the reference.
        limit: :class:`Limit` or ``None``.
        choices: allowed values; empty if any will do.
        other: :class:`Limit` of values that are allowed besides the choices, or ``None``.
        synonyms: other names of choices, each with the choice that it means; then upper and lower case are the same.
        respelled: ``None``, or a function from a string to the string that means the same here.
        aliases: names in other programs; an error about one of them as an unknown key suggests this key.
        switch: ``None``, or the two values of this key that ``false`` and ``true`` mean in place of the whole section;
            its other values are then allowed there, too.
    """

    name: str
    type: typing.Any
    default: typing.Any
    help: str
    limit: Limit | None = None
    choices: tuple[str, ...] = ()
    other: Limit | None = None
    synonyms: dict[str, str] = dataclasses.field(default_factory=dict)
    respelled: Callable[[str], str] | None = None
    aliases: tuple[str, ...] = ()
    switch: tuple[str, str] | None = None

    @property
    def required(self):
        """Whether the key has no default."""
        return self.default is dataclasses.MISSING

    @property
    def allowed(self):
        """The allowed values, as text."""
        kind, optional = _without_null(self.type)
        text = ", ".join((*self.choices, *self.synonyms)) if self.choices else _described(kind)
        text += f", or {self.other.text}" if self.choices and self.other else ""
        text += f" {self.limit.text}" if self.limit else ""
        return text + (", or null" if optional else "")

    def convert(self, value):
        """Returns ``value``, read from YAML, as the key's type.

        Raises:
            ValueError: it is of another type, or not allowed.
        """
        kind, optional = _without_null(self.type)
        if value is None and optional:
            return None
        converted = _converted(value, kind)
        if self.synonyms:
            converted = meant(converted, self.choices, self.synonyms)
        if self.respelled and converted is not None:
            converted = self.respelled(converted)
        is_allowed = not self.choices or converted in self.choices or (self.other and self.other.holds(converted))
        if not is_allowed or (self.limit and not self.limit.holds(converted)):
            raise ValueError(value)
        return converted

    def near(self, value):
        """Returns the allowed value that ``value``, which is not allowed, most likely means, or ``None``."""
        found = [limit.near(value) for limit in (self.other, self.limit) if limit]
        if isinstance(value, str):
            found.append(nearest(value, (*self.choices, *self.synonyms)))
        return next(filter(None, found), None)

    def convert_switch(self, value):
        """Returns the key's value for a ``value`` in place of the section; raises as :meth:`convert` does."""
        return self.convert(self.switch[value] if isinstance(value, bool) else value)


def key(help, default=dataclasses.MISSING, **more):
    """Declares a key in a section's dataclass; for the arguments, including ``more``, see :class:`Key`."""
    return dataclasses.field(default=default, metadata={"help": help, **more})


def sections(schema):
    """Returns the dataclasses of a schema's sections by name, in order."""
    return {field.name: field.type for field in dataclasses.fields(schema)}


def keys(schema):
    """Returns the :class:`Key` objects of a schema by dotted name, in order."""
    return {
        f"{section}.{field.name}": Key(
            name=f"{section}.{field.name}", type=field.type, default=field.default, **field.metadata
        )
        for section, declaration in sections(schema).items()
        for field in dataclasses.fields(declaration)
    }


def switch_of(section, known):
    """Returns the key of a section that can be set by a value in place of the section, or ``None``."""
    return next((key for name, key in known.items() if name.startswith(f"{section}.") and key.switch), None)


def _without_null(kind):
    if not isinstance(kind, types.UnionType):
        return kind, False
    kinds = typing.get_args(kind)
    inner = tuple(each for each in kinds if each is not types.NoneType)
    return inner[0] if len(inner) == 1 else inner, types.NoneType in kinds


def _described(kind):
    if isinstance(kind, tuple):
        return " or ".join(map(_described, kind))
    if typing.get_origin(kind) is tuple:
        kinds = typing.get_args(kind)
        count = "" if ... in kinds else f"{len(kinds)} "
        return f"a list of {count}{'strings' if kinds[0] is str else 'numbers'}"
    names = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
    return (names | {Pairs: "a mapping from strings to numbers, each"})[kind]


def _converted(value, kind):
    if isinstance(kind, tuple):  # one of several
        return _converted(value, str if type(value) is str else next(each for each in kind if each is not str))
    if kind is Pairs and isinstance(value, dict):
        return Pairs((text, _converted(number, float)) for text, number in value.items())
    if typing.get_origin(kind) is tuple and isinstance(value, list):
        kinds = typing.get_args(kind)
        if ... in kinds:
            kinds = kinds[:1] * len(value)
        return tuple(_converted(item, kind) for item, kind in zip(value, kinds, strict=True))
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        value = float(value)
    # Not isinstance: True is not an integer here.
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise ValueError(value)
    return value
