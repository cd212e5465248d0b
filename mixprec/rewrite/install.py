"""What a process needs once for converted models to run in it."""

from mixprec import without_masters
from mixprec.functions import widening
from mixprec.rewrite import calls, composed, devices, dispatch, files


def install(link_class):
    """Makes Chainer look for conversions: when functions are applied, and links of a class are called and saved."""
    dispatch.install()
    composed.install()
    widening.install()
    files.install()
    devices.install()
    calls.install(link_class)
    without_masters.look_again()
