"""Skips the tests of the device where there is none."""

import pytest

from mixprec import environment


def pytest_collection_modifyitems(items):
    if environment.usable_device_count():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and CuPy, see python -m mixprec")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
