"""Files of converted models: 16-bit parameters are saved in float32, and rounded when they are loaded."""

import functools

import chainer

from mixprec.links.storage import in_float32
from mixprec.rewrite.state import state_of


def install():
    """Makes converted links save and load float32, under Chainer's names and in Chainer's order of axes, once.

    A file of a converted model then looks like one of the plain model, and either loads into the other.
    """
    original = chainer.Link.serialize
    if hasattr(original, "looks_for_conversion"):
        return

    @functools.wraps(original)
    def serialize(self, serializer):
        original(self, serializer if state_of(self) is None else in_float32(serializer))

    serialize.looks_for_conversion = True
    chainer.Link.serialize = serialize
