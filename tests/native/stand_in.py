"""A pytest plugin: the native library of the variable ``STAND_IN`` in place of the one that is installed."""

import importlib.util
import os
import sys

_NAME = "mixprec.native._library"
_spec = importlib.util.spec_from_file_location(_NAME, os.environ["STAND_IN"])
sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[_NAME])
