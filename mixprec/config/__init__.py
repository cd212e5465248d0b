"""The YAML files that describe a training run: a strict loader, the schema, and the way back to YAML.

Needs nothing but PyYAML, so that a mistake in a config is reported before anything heavy is imported.
"""

from mixprec.config.errors import ConfigError, shown
from mixprec.config.loader import load
from mixprec.config.schema import Config
from mixprec.config.writer import dump, flat, reference

__all__ = ["Config", "ConfigError", "dump", "flat", "load", "reference", "shown"]
