"""Circles, skips of what needs a device, kernels that g++ has compiled, and settings that tests leave behind."""

import dataclasses
import gc
import importlib.util
import logging
import os
import signal
import sys
import tempfile

import matplotlib
import pytest

from mixprec.app.parts import gpus
from mixprec.backends.cudnn import settings as cudnn
from mixprec.native import native_library
from tests import cases


def pytest_configure(config):
    cases.load_profile(config)
    # What processes of tests keep is neither taken from the user's folder nor left there. Matplotlib's list of fonts
    # takes seconds to make, and stays where it is.
    os.environ.setdefault("MPLCONFIGDIR", matplotlib.get_cachedir())
    config.add_cleanup(_cache_folder().cleanup)
    # Where there was no compiler each script would say that NumPy computes, beside what its test expects.
    if importlib.util.find_spec("mixprec.native._library") is None:
        os.environ.setdefault(native_library.SWITCH, "0")
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored under nohup and in a shell's background, also by children
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def _cache_folder():
    folder = tempfile.TemporaryDirectory(prefix="mixprec-tests-", ignore_cleanup_errors=True)
    os.environ["XDG_CACHE_HOME"] = folder.name
    return folder


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by mark
def pytest_collection_modifyitems(items):
    cases.mark(items)
    if gpus.usable_device_count():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and CuPy, see mixprec info")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Modules and collected tests stay: without this each ``gc.collect``, as before a capture, walks all of them."""
    gc.disable()  # a fifth of the time
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture
def no_collector():
    """Python's cyclic collector is off: what only it would free is there to the end."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def announced(monkeypatch, caplog):
    """What is announced, as if nothing had been announced before."""
    from mixprec.base import announcements  # with Chainer, for which a test may need a stand-in first

    monkeypatch.setattr(announcements, "_said", set())
    caplog.set_level(logging.WARNING, "mixprec")
    return caplog


@pytest.fixture(autouse=True)
def _cudnn_settings():
    """A training run in a test leaves its settings behind; and no test keeps choices in the user's folder."""
    cudnn.configure(**dataclasses.asdict(cudnn.Settings(cache=None)))


@pytest.fixture(autouse=True)
def _no_dropout_yet():
    """Random states of dropout outlive a test, and are then in the files of every optimizer."""
    if "mixprec.backends.dropout_state" in sys.modules:
        sys.modules["mixprec.backends.dropout_state"].reset_dropout()
