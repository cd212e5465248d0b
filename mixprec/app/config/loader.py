"""Turns config files and ``--set`` overrides into a checked config; the keys are declared in the schema.

The training command and the benchmarks call :func:`load` first of all.
"""

import dataclasses
import os

from mixprec.app.config.config_error import ConfigError, shown
from mixprec.app.config.schema import Config
from mixprec.app.config.yaml_source import read_file, read_value
from mixprec.base import files
from mixprec.base.declaration import Pairs, keys, sections, switch_of
from mixprec.base.messages import encoding_hint, hint, nearest
from mixprec.recipes import config_names, config_path

_SET = "--set"


@dataclasses.dataclass(frozen=True)
class _Setting:
    value: object
    where: str


def load(path, overrides=(), choices=None):
    """Loads a config file.

    ``base: other.yaml`` at the top of a file inherits from another file; the path is relative to the inheriting file.
        If
    there is no such file, it names a config that comes with mixprec, see :func:`mixprec.recipes.config_path`. Keys of
    the inheriting file take precedence one by one; lists are replaced as a whole. ``overrides`` take precedence over
    all files. Every value of every file is checked, also overridden ones.

    Args:
        path: path of the YAML file.
        overrides: list of ``"section.key=value"``, the value written as in YAML; the last one wins.
        choices: allowed values that the schema cannot know: a dict from dotted key to a list of names.

    Returns:
        Config

    Raises:
        ConfigError: the config cannot be used; the message is one line.
        KeyError: ``choices`` names a key that does not exist.

    Example:
        >>> from mixprec.app import config
        >>> from mixprec.recipes import config_path
        >>> config.load(config_path("digits.yaml"), ["training.epochs=3"]).training.epochs
        3
    """
    path = os.fspath(path)
    known = keys(Config)
    for name, names in (choices or {}).items():
        known[name] = dataclasses.replace(known[name], choices=tuple(names))
    settings = {}
    for entries in reversed(_chain(path)):
        _put(settings, _file_settings(entries, known))
    for override in overrides:
        _put(settings, _override(override, known))
    return _build(path, settings, known)


def _chain(path):
    """Returns the entries, without ``base``, of a file and of each that it inherits from, in this order."""
    chain, seen = [], {}
    while path is not None:
        try:
            entries = read_file(path)
        except FileNotFoundError:
            raise ConfigError(path, f"no such file{_others(path)}") from None
        seen[os.path.realpath(path)] = path
        base = next((entry for entry in entries if entry.key == "base"), None)
        chain.append([entry for entry in entries if entry is not base])
        if base is None:
            break
        value = base.value()
        if files.is_closed(path):
            raise ConfigError(base.where, f"'base' is {shown(value)}; the config of a run has all keys, and no base")
        if not isinstance(value, str) or not value:
            raise ConfigError(base.where, f"'base' is {shown(value)}; allowed: the path of a YAML file")
        path = config_path(value, os.path.dirname(path))
        if not os.path.exists(path):
            reason = encoding_hint(path) or _others(path)
            raise ConfigError(base.where, f"'base' is {shown(value)}; no such file: {path}{reason}")
        if os.path.realpath(path) in seen:
            cycle = " -> ".join([*seen.values(), path])
            raise ConfigError(base.where, f"'base' forms a cycle: {cycle}; allowed: a file outside it")
    return chain


def _others(path):
    """Returns the end of a message about a missing file: which one of its folder, or of mixprec, may be meant."""
    folder, name = os.path.split(path)
    shipped = {os.path.basename(name).removesuffix(".yaml"): name for name in config_names()}
    beside = {os.path.splitext(name)[0]: os.path.join(folder, name) for name in _configs_in(folder or os.curdir)}
    near = nearest(os.path.splitext(name)[0], shipped | beside)
    if near in beside:
        return hint(beside[near])
    return f"; mixprec comes with {', '.join(shipped.values())}{hint(near and shipped[near])}"


def _configs_in(folder):
    try:
        return [name for name in os.listdir(folder) if name.endswith((".yaml", ".yml"))]
    except (OSError, ValueError):  # there is no such folder, or it is not a path
        return []


def _put(settings, later):
    """Updates ``settings`` and keeps them in the order in which they were last written."""
    for name, setting in later.items():
        settings.pop(name, None)
        settings[name] = setting


def _file_settings(entries, known):
    settings = {}
    for section in entries:
        if section.key not in sections(Config):
            raise _unknown_section(section, known)
        mapping = section.mapping()
        if mapping is None:
            keys_of_section = f"a section with the keys {', '.join(_names(section.key, known))}"
            settings.update(_switched(section, known, [keys_of_section]))
            continue
        for entry in mapping:
            name = f"{section.key}.{entry.key}"
            if name not in known:
                raise _unknown_key(name, entry.where, known)
            settings[name] = _setting(known[name], entry)
    return settings


def _override(override, known):
    name, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(_SET, f"{shown(override)} has no '='; allowed: SECTION.KEY=VALUE")
    if switch_of(name, known):
        return _switched(read_value(name, text, _SET), known)
    if name not in known:
        raise _unknown_key(name, _SET, known)
    return {name: _setting(known[name], read_value(name, text, _SET))}


def _switched(section, known, others=()):
    """Returns the setting that a value given for a section means; ``others`` names further allowed values."""
    key, value = switch_of(section.key, known), section.value()
    if key is not None:
        try:
            return {key.name: _Setting(key.convert_switch(value), section.where)}
        except ValueError:
            others = (f"true, false, {key.allowed}", *others)
    raise _not_allowed(section.key, value, section.where, ", or ".join(others), key)


def _setting(key, entry):
    value = entry.scalars() if key.type is Pairs else entry.value()
    try:
        return _Setting(key.convert(value), entry.where)
    except ValueError:
        raise _not_allowed(key.name, value, entry.where, key.allowed, key) from None


def _not_allowed(name, value, where, allowed, key):
    near = None if key is None else key.near(value)
    return ConfigError(where, f"{name!r} is {shown(value)}; allowed: {allowed}{hint(near)}")


def _build(path, settings, known):
    missing = [name for name, key in known.items() if key.required and name not in settings]
    if missing:
        raise ConfigError(path, f"missing keys: {', '.join(missing)}; they have no default")
    values = {name: settings[name].value if name in settings else key.default for name, key in known.items()}
    made = {}
    for section, declaration in sections(Config).items():
        made[section] = declaration(**{key: values[f"{section}.{key}"] for key in _names(section, known)})
    config = Config(**made)
    for rule in Config.RULES:
        if not rule.holds(config):
            raise _impossible(rule, config, values, settings, path)
    return config


def _impossible(rule, config, values, settings, path):
    origins = {name: settings[name].where if name in settings else "default" for name in rule.keys}
    found = ", ".join(f"{name!r} is {shown(values[name])} ({origin})" for name, origin in origins.items())
    # The message starts with the location that the user most likely wants to change: the last one written.
    written = [name for name in settings if name in origins]
    where = settings[written[-1]].where if written else path
    return ConfigError(where, f"impossible combination: {found}; allowed: {rule.text}{hint(rule.near(config))}")


def _unknown_section(entry, known):
    key, section = _nearest_key(entry.key, (), known), nearest(entry.key, sections(Config))
    near = (section or key) if entry.mapping() is not None else (key or section)
    allowed = ", ".join([*sections(Config), "base"])
    return ConfigError(entry.where, f"unknown section {shown(entry.key)}; allowed: {allowed}{hint(near)}")


def _unknown_key(name, where, known):
    section, _, leaf = name.partition(".")
    if section in sections(Config):
        allowed = ", ".join(_names(section, known))
        near = _nearest_key(leaf, (section,), known)
    else:
        allowed = ", ".join(f"{name}.*" for name in sections(Config))
        near = _nearest_key(leaf or name, (nearest(section, sections(Config)),), known)
    return ConfigError(where, f"unknown key {shown(name)}; allowed: {allowed}{hint(near)}")


def _names(section, known):
    return [name.partition(".")[2] for name in known if name.startswith(f"{section}.")]


def key_of_name(name):
    """Returns the dotted name of the key that is called ``name``, here or in another program, or ``None``."""
    known = keys(Config)
    own = {dotted.partition(".")[2]: dotted for dotted in reversed(known)}
    return own.get(name) or next((dotted for dotted, key in known.items() if name in key.aliases), None)


def _nearest_key(leaf, own, known):
    """Returns the dotted name that ``leaf`` most likely means, in the sections ``own`` if any; or ``None``."""
    inside, anywhere = {}, {}
    for name, key in known.items():
        section, _, key_leaf = name.partition(".")
        for spelling in (key_leaf, *key.aliases):
            anywhere.setdefault(spelling, name)
            if section in own:
                inside.setdefault(spelling, name)
    for spellings, cutoff in ((inside, 1.0), (anywhere, 1.0), (inside, 0.6), (anywhere, 0.8)):
        near = nearest(leaf, spellings, cutoff)
        if near is not None:
            return spellings[near]
    return None
