"""Skips the tests of the device where there is none, takes the clock out of property tests, resets cuDNN's settings."""

import dataclasses
import os
import sys

import hypothesis
import pytest

from mixprec import environment
from mixprec.backends.cudnn import settings as cudnn

hypothesis.settings.register_profile(
    "mixprec",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,  # CI repeats the same examples, other runs look for new ones
)
hypothesis.settings.load_profile("mixprec")


def pytest_collection_modifyitems(items):
    if environment.usable_device_count():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and CuPy, see python -m mixprec")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _cudnn_settings():
    """A training run in a test leaves its settings behind; and no test keeps choices in the user's folder."""
    cudnn.configure(**dataclasses.asdict(cudnn.Settings(cache=None)))


@pytest.fixture(autouse=True)
def _no_dropout_yet():
    """Random states of dropout outlive a test, and are then in the files of every optimizer."""
    if "mixprec.functions.dropout" in sys.modules:
        sys.modules["mixprec.functions.dropout"].reset_dropout()
