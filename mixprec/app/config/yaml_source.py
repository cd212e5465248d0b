"""YAML text to plain values that know their line: the strict subset of YAML that configs are written in.

Numbers, booleans and null are those of YAML 1.2's core schema, in decimal. PyYAML itself follows YAML 1.1, where
``1e-3`` is a string, ``010`` is 8, ``1:30`` is 90, ``no`` is false and ``2024-01-01`` is a date.
"""

import re
from dataclasses import dataclass

import yaml

from mixprec.app.config.config_error import ConfigError, shown
from mixprec.base import files
from mixprec.base.declaration import Pairs
from mixprec.base.messages import encoding_hint

_LARGEST = 1 << 18  # bytes of a file: hundreds of times what all keys take, and read in seconds
_DIGITS = 1000  # of an integer; no key takes so many


def _integer(text):
    if len(text) > _DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


_PLAIN = (
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""], lambda text: None),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF"), lambda text: text.lower() == "true"),
    ("int", r"[-+]?[0-9]+", list("-+0123456789"), _integer),
    ("float", r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789"), float),
)
_PREFIX = "tag:yaml.org,2002:"
_PARSERS = {_PREFIX + name: (pattern, parse) for name, pattern, _, parse in _PLAIN}
_PARSERS[_PREFIX + "str"] = (r"(?s:.*)", str)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012  (PyYAML's own class attribute)


for _name, _pattern, _first, _ in _PLAIN:
    _Loader.add_implicit_resolver(_PREFIX + _name, re.compile(rf"(?:{_pattern})\Z"), _first)


class Dumper(yaml.SafeDumper):
    """Quotes the strings that this module or YAML 1.1 would not read as strings; tuples become ``[a, b]``."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own class attribute)
        first: _Loader.yaml_implicit_resolvers.get(first, []) + yaml.SafeDumper.yaml_implicit_resolvers.get(first, [])
        for first in {*_Loader.yaml_implicit_resolvers, *yaml.SafeDumper.yaml_implicit_resolvers}
    }


def _represent_str(dumper, text):
    # PyYAML leaves U+0085 bare, which reads back as a space; in double quotes it escapes what does not print.
    return dumper.represent_scalar(_PREFIX + "str", text, style=None if text.isprintable() else '"')


def _represent_tuple(dumper, items):
    return dumper.represent_sequence(_PREFIX + "seq", items, flow_style=True)


def _represent_pairs(dumper, pairs):
    return dumper.represent_mapping(_PREFIX + "map", dict(pairs), flow_style=True)


Dumper.add_representer(Pairs, _represent_pairs)
Dumper.add_representer(str, _represent_str)
Dumper.add_representer(tuple, _represent_tuple)


@dataclass(frozen=True)
class Nested:
    """A mapping or list where no key takes one; not expanded, as aliases can make it endless."""

    name: str

    def __repr__(self):
        return self.name


@dataclass(frozen=True)
class Entry:
    """One ``key: value`` of a mapping, with the place it was written at."""

    key: str
    node: yaml.Node
    where: str

    def value(self):
        """Returns ``None``, a bool, int, float or str, a list of those, or :class:`Nested`."""
        try:
            return _value(self.node)
        except ValueError as error:  # a tag, or an integer of too many digits
            raise ConfigError(self.where, f"{shown(self.key)} cannot be read: {error}") from error

    def scalars(self):
        """Returns the mapping that the value is, as a dict of what :meth:`value` returns; anything else likewise."""
        entries = self.mapping()
        return self.value() if entries is None else {entry.key: entry.value() for entry in entries}

    def mapping(self):
        """Returns the entries of the mapping that the value is, or ``None`` if it is none."""
        file = self.where.rpartition(":")[0] or self.where
        return _entries(self.node, file) if isinstance(self.node, yaml.MappingNode) else None


def read_file(path):
    """Reads a YAML file whose top is a mapping.

    Args:
        path: path of the file, as it is to appear in messages.

    Returns:
        list of Entry: empty if the file is.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the file cannot be read, is a device or pipe, larger than 256 KiB, not UTF-8, not YAML, not a
            mapping, or repeats a key.
    """
    try:
        data = files.read(path, _LARGEST)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ConfigError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}", f"not UTF-8 (byte 0x{data[error.start]:02x})") from error
    node = _compose(text, path, lambda line: f"{path}:{line}")
    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else shown(node.value)
        raise ConfigError(f"{path}:{node.start_mark.line + 1}", f"found {found}; allowed: sections with keys")
    return _entries(node, path)


def read_value(key, text, where):
    """Returns the :class:`Entry` of a value that is written as YAML outside any file, or that begins with ``@``."""
    if text.startswith("@"):  # such as a device of Chainer; YAML would want quotes, and so would the shell
        return Entry(key, yaml.ScalarNode(_PREFIX + "str", text), where)
    node = _compose(text, f"{where}: {key!r}", lambda line: f"{where}: {key!r}")
    return Entry(key, node or yaml.ScalarNode(_PREFIX + "null", ""), where)


def _compose(text, where, at_line):
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"{error.context} {error.problem}" if error.problem.startswith("but ") else error.problem
        if problem.startswith(("found character '@'", "found character '`'")):
            problem += "; write the text in quotes"
        raise ConfigError(at_line(mark.line + 1) if mark else where, f"not valid YAML: {problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"character U+{error.character:04X} is not allowed{encoding_hint(chr(error.character))}"
        raise ConfigError(at_line(line), f"not valid YAML: {problem}") from error
    except (ValueError, OverflowError) as error:  # PyYAML converts "\U00110000" and "%YAML 1.999..." unchecked
        raise ConfigError(where, f"not valid YAML: {error}") from error
    except RecursionError:
        raise ConfigError(where, "not valid YAML: nested too deeply") from None


def _entries(node, file):
    if node.tag != _PREFIX + "map":
        raise ConfigError(f"{file}:{node.start_mark.line + 1}", f"tag {node.tag!r} is not allowed")
    entries = {}
    for key_node, value_node in node.value:
        where = f"{file}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(where, "found a list or mapping as a key; allowed: a name")
        key = key_node.value
        if key in entries:
            first = entries[key].where.rpartition(":")[2]
            raise ConfigError(where, f"duplicate key {shown(key)}; it is already on line {first}")
        entries[key] = Entry(key, value_node, where)
    return list(entries.values())


def _value(node):
    if isinstance(node, yaml.MappingNode):
        return Nested("a mapping")
    if isinstance(node, yaml.SequenceNode) and node.tag == _PREFIX + "seq":
        return [_value(item) if isinstance(item, yaml.ScalarNode) else Nested("...") for item in node.value]
    pattern, parse = _PARSERS.get(node.tag, (None, None))
    if parse is None or not re.fullmatch(pattern, node.value):
        raise ValueError(f"tag {node.tag!r} is not allowed")
    return parse(node.value)
