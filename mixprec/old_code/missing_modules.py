"""Provides modules that old libraries import and that are not installed, by the last finder that Python asks.

So installed modules take precedence: ``pkg_resources`` of setuptools before 82, or a compiled ``_nms_gpu_post``.
"""

import importlib.util
import pathlib
import sys

_PACKAGE = pathlib.Path(__file__).parents[1]
_FILES = {
    "pkg_resources": _PACKAGE / "compat" / "package_resources.py",
    # chainercv's source on PyPI has C code for NumPy 1 only.
    "chainercv.utils.bbox._nms_gpu_post": _PACKAGE / "old_code" / "nms_gpu_post.py",
}


class _LastFinder:
    """Finder at the end of ``sys.meta_path``."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, _FILES[name]) if name in _FILES else None


def register():
    """Puts the finder at the end of ``sys.meta_path``, once."""
    if _LastFinder not in sys.meta_path:
        sys.meta_path.append(_LastFinder)
