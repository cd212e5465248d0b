"""Writes a config as a YAML file that loads back to it, and the reference of all keys."""

import dataclasses
import inspect
import re

import yaml

from mixprec.app.config.schema import Config
from mixprec.app.config.yaml_source import Dumper
from mixprec.base.declaration import Pairs, keys, sections, switch_of
from mixprec.base.messages import one_line


def flat(config):
    """Returns the values of a config by dotted name, in the order of the schema: text, numbers, lists and ``None``.

    Example:
        >>> from mixprec.app import config
        >>> from mixprec.recipes import config_path
        >>> config.flat(config.load(config_path("digits.yaml"), ["training.epochs=3"]))["training.epochs"]
        3
    """
    parts = dataclasses.asdict(config).items()
    return {f"{section}.{key}": _plain(value) for section, values in parts for key, value in values.items()}


def defaults():
    """Returns the default of each key that has one, in the form of :func:`flat`.

    Example:
        >>> from mixprec.app import config
        >>> config.defaults()["precision.compute"]
        'float16'
    """
    return {name: _plain(key.default) for name, key in keys(Config).items() if not key.required}


def _plain(value):
    if isinstance(value, Pairs):
        return [list(pair) for pair in value]  # a list, as the order counts
    return list(value) if isinstance(value, tuple) else value


def dump(config, *, source=None, overrides=(), version=None, changes=()):
    """Writes a config out in full, defaults included.

    Args:
        config: :class:`~mixprec.app.config.Config`.
        source: path of the file that it was loaded from, for the comment at the top.
        overrides: the ``--set`` arguments that were applied, for the comment.
        version: version of mixprec, for the comment.
        changes: differences from the run that this one continues, a line each, for the comment.

    Returns:
        str: YAML from which :func:`~mixprec.app.config.load` makes an equal config.

    Example:
        >>> from mixprec.app import config
        >>> from mixprec.recipes import config_path
        >>> text = config.dump(config.load(config_path("digits.yaml")), source="digits.yaml")
        >>> text.splitlines()[:4]
        ['# Resolved config, written by mixprec', '# from digits.yaml', 'model:', '  arch: resnet8']
    """
    lines = ["Resolved config, written by mixprec" + (f" {version}" if version is not None else "")]
    if source is not None:
        lines.append(f"from {source}")
    lines.extend(f"--set {override}" for override in overrides)
    lines.extend(changes)
    header = "".join(f"# {one_line(line)}\n" for line in lines)
    return header + _yaml(dataclasses.asdict(config))


def reference(tuning=False):
    """Returns the lists of keys in Markdown, as they stand in ``docs/config.md`` or ``docs/config-tuning.md``.

    Args:
        tuning: Whether to describe the sections in ``Config.TUNING``, or the others.

    Returns:
        str: a list for each section: default, allowed values, help.

    Example:
        >>> from mixprec.app import config
        >>> config.reference().splitlines()[0]
        '## `model`'
    """
    known = keys(Config)
    parts = []
    for section, declaration in sections(Config).items():
        if (section in Config.TUNING) != tuning:
            continue
        parts += [f"## `{section}`", "", inspect.cleandoc(declaration.__doc__), ""]
        switch = switch_of(section, known)
        if switch is not None:
            off, on = switch.switch
            parts += [
                f"As a short form of the section, `{section}: true` sets `{switch.name}` to {on}, `false` to {off}, "
                f"and {', '.join(switch.choices)} to themselves.",
                "",
            ]
        parts += [
            f"- `{name}` ({'; '.join(filter(None, (_default(key), _allowed(key))))}): {key.help}"
            for name, key in known.items()
            if name.startswith(f"{section}.")
        ]
        parts.append("")
    return "\n".join(parts)


def _default(key):
    return "required" if key.required else f"`{_scalar(key.default)}`"


def _allowed(key):
    """Returns the allowed values of a key, without what its default says and bounds that few reach."""
    text = key.allowed.removesuffix(", or null") if key.default is None else key.allowed
    return "" if key.type is bool else re.sub(r"(>=? \S+) and <= [12]\d{6,}\b", r"\1", text)


def _scalar(value):
    return _yaml([value]).strip()[2:]


def _yaml(value):
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))
