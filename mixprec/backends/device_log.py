"""A log of mixprec's requests to a device: launches, memory, uploads and reads.

Backends and launchers call :func:`record` for each of them. It does nothing outside a :func:`recording`, which
``mixprec.capture`` opens to compare two steps, and the measuring tools to count one.
"""

import contextlib
import sys
import threading
from typing import NamedTuple

from mixprec.base.scoped import scoped


class Record(NamedTuple):
    """One request to a device.

    Attributes:
        kind: ``"kernel"`` (of our own), ``"cudnn"``, ``"blas"`` (of cuBLAS), ``"array"`` (a function of
            NumPy or CuPy that launches), ``"function"`` (of Chainer's, whose kernels are not recorded), ``"memory"``
            (new memory: address and bytes), ``"copy"`` (to another memory or back, without values of the host),
            ``"upload"`` (from the host) or ``"read"`` (the host waits for the device).
        name: name of the kernel, the kind of operation, or the function.
        arguments: its arguments: numbers and addresses; the operation and addresses for cuDNN.
        primitive: name of the outermost primitive that made the request; empty outside mixprec's primitives.
        line: file and line of the user's code that led to it; empty without ``locate``.
    """

    kind: str
    name: str
    arguments: tuple
    primitive: str = ""
    line: str = ""


class _Log(threading.local):
    records = None
    locate = None
    primitive = ""


_log = _Log()


@contextlib.contextmanager
def recording(locate=None):
    """Collects the records of this thread in the list that it gives; an inner block has its own list.

    Args:
        locate: callable from the frame that records to the ``line`` of the record, or ``None``.
    """
    with scoped(_log, records=[], locate=locate):
        yield _log.records


def is_recording():
    """Whether this thread is inside a :func:`recording`."""
    return _log.records is not None


def record(kind, name, *arguments):
    """Adds a :class:`Record` to the list of the innermost :func:`recording`, if there is one."""
    if _log.records is not None:
        line = "" if _log.locate is None else _log.locate(sys._getframe(1))
        _log.records.append(Record(kind, name, arguments, _log.primitive, line))


@contextlib.contextmanager
def asked_by(primitive):
    """Inside the block, records have the name of a primitive, unless an outer one applies."""
    with scoped(_log, primitive=_log.primitive or primitive):
        yield
