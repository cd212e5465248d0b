"""Notes on what a device is asked, taken by whoever asks while somebody wants them."""

import contextlib
import sys
import threading
from typing import NamedTuple


class Note(NamedTuple):
    """One thing that a device was asked.

    Attributes:
        kind: ``"kernel"`` (of our own), ``"cudnn"``, ``"array"`` (a function of NumPy or CuPy that launches),
            ``"function"`` (of Chainer's, which launches what nobody here sees), ``"memory"`` (new memory: address and
            bytes), ``"upload"`` (from the host) or ``"read"`` (the host waits for the device).
        name: of the kernel, the kind of operation, the function.
        arguments: what it was called with: numbers and addresses; the operation and addresses for cuDNN.
        primitive: name of the primitive that asked, of the outermost one; empty for what nobody of mixprec asked.
        line: file and line of the user's code that led to it; empty if nobody wants to know.
    """

    kind: str
    name: str
    arguments: tuple
    primitive: str = ""
    line: str = ""


class _Taking(threading.local):
    notes = None
    locate = None
    primitive = ""


_taking = _Taking()


@contextlib.contextmanager
def taking(locate=None):
    """Collects the notes of this thread in the list that it gives; an inner block has notes of its own.

    Args:
        locate: callable from the frame that takes a note to its ``line``, or ``None``.
    """
    outer = _taking.notes, _taking.locate
    _taking.notes, _taking.locate = [], locate
    try:
        yield _taking.notes
    finally:
        _taking.notes, _taking.locate = outer


def is_taking():
    """Whether somebody wants notes of this thread."""
    return _taking.notes is not None


def take(kind, name, *arguments):
    """Takes a note, if somebody wants it; arguments as of :class:`Note`."""
    if _taking.notes is not None:
        line = "" if _taking.locate is None else _taking.locate(sys._getframe(1))
        _taking.notes.append(Note(kind, name, arguments, _taking.primitive, line))


@contextlib.contextmanager
def asked_by(primitive):
    """Inside of the block notes have the name of a primitive, unless they have that of an outer one."""
    outer, _taking.primitive = _taking.primitive, _taking.primitive or primitive
    try:
        yield
    finally:
        _taking.primitive = outer
