"""The YAML files that describe a training run: a strict loader, the schema, and a writer.

Reading order. ``run``, ``arithmetic`` and ``data`` declare the keys of their sections; ``schema`` joins them to a
:class:`Config`, and has the rules for several keys together. ``loader`` reads a file by ``yaml_source``, ``writer``
writes it and the lists in ``docs/config.md`` and ``config-tuning.md``, ``config_error`` has the error. Loading needs
only PyYAML, so that a mistake in a config is reported before anything heavy is imported.
"""

from mixprec.app.config.config_error import ConfigError, location, shown
from mixprec.app.config.loader import load
from mixprec.app.config.schema import Config
from mixprec.app.config.writer import defaults, dump, flat, reference

__all__ = ["Config", "ConfigError", "defaults", "dump", "flat", "load", "location", "reference", "shown"]
