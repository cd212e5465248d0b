"""The YAML files that describe a training run: a strict loader, the schema, and the way back to YAML.

The training command and the benchmarks load one each, first of all. Loading needs nothing but PyYAML, so that a mistake
in a config is reported before anything heavy is imported.
"""

from mixprec.app.config.config_error import ConfigError, shown
from mixprec.app.config.loader import load
from mixprec.app.config.schema import Config
from mixprec.app.config.writer import defaults, dump, flat, reference

__all__ = ["Config", "ConfigError", "defaults", "dump", "flat", "load", "reference", "shown"]
