"""Tests of the batched update on a CPU are skipped where there is no native library."""

import pytest

from mixprec.native.native_library import library


def pytest_runtest_setup(item):
    if library() is None and not item.get_closest_marker("gpu"):
        pytest.skip("needs the native library: without it parameters are updated one by one")
