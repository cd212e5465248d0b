"""Converted links that move to another device: their filters keep their order in memory."""

import functools

import chainer

from mixprec.rewrite import parameters
from mixprec.rewrite.state import state_of


def install():
    """Makes converted links lay out their filters again after ``to_device`` and its like, once.

    CuPy and NumPy copy arrays into the order of their axes. Processes that train together send raw memory, and so must
    have one order even of filters that some of them have not used.
    """
    original = chainer.Link.device_resident_accept
    if hasattr(original, "looks_for_conversion"):
        return

    @functools.wraps(original)
    def device_resident_accept(self, visitor):
        original(self, visitor)
        state = state_of(self)
        if state is not None:
            parameters.order(self, state.conversion.policy.layout == "nhwc")

    device_resident_accept.looks_for_conversion = True
    chainer.Link.device_resident_accept = device_resident_accept
