"""Handles standard output and error that cannot be written: closed, a full disk, ``| head``, a lost terminal.

Every command calls :func:`guard` first, see :mod:`mixprec.app.commands.command_process`. From then on no print raises:
output that cannot be written is dropped, and :func:`run` reports that at the end. A command whose work matters more
than its output reports the failure at once and continues, inside of :func:`view`. A command whose only result is its
output ends at once, by :func:`say` or inside of :func:`raising`.
"""

import contextlib
import errno
import io
import os
import select
import sys

from mixprec.base.messages import OneLineError, one_line

_NAMES = {"stdout": "standard output", "stderr": "standard error"}
_CLOSED = "it is closed"


class PrintError(OneLineError):
    """Standard output cannot be written, for example on a full disk; the message is one line."""


class ReaderGone(PrintError):
    """The process that reads standard output has ended, as ``| head`` does."""


class _Block:
    """Settings of the current context: :func:`view` sets ``rest``, and :func:`raising` sets ``is_raised``."""

    rest = None
    is_raised = None


class _Descriptor(io.RawIOBase):
    """A standard stream's descriptor that accepts everything, and drops output that cannot be written.

    Each write is tried: a disk that was full may have space again.

    Args:
        attribute: ``"stdout"`` or ``"stderr"``, of ``sys``.
        number: the descriptor; ``None`` if there is none.
        is_closed: whether it was closed when the process started, and now is ``/dev/null``.

    Attributes:
        error: the first ``OSError`` that was not reported yet.
    """

    def __init__(self, attribute, number, is_closed):
        self._attribute, self._number, self._is_closed = attribute, number, is_closed
        self._is_told = False
        self.error = None

    def writable(self):
        return True

    def fileno(self):
        return super().fileno() if self._number is None else self._number  # super() raises UnsupportedOperation

    def isatty(self):
        return self._number is not None and os.isatty(self._number)

    def write(self, data):
        content = bytes(data)
        try:
            self._write(content)
        except OSError as error:
            self._fail(error)
        return len(content)

    def say_now(self):
        """Reports output that was lost before the current context."""
        error, self.error = self.error, None
        if error is not None:
            self._fail(error)

    def _write(self, left):
        while left:
            if self._is_closed:
                raise OSError(errno.EBADF, _CLOSED)
            try:
                left = left[os.write(self._number, left) :]
            except BlockingIOError:  # another process has set O_NONBLOCK on the shared terminal or pipe
                poll = select.poll()
                poll.register(self._number, select.POLLOUT)
                poll.poll()

    def _fail(self, error):
        if _Block.rest is not None:
            if not self._is_told:
                self._is_told = True
                _tell(self._attribute, f"{_NAMES[self._attribute]}: {error.strerror}; {_Block.rest}")
        elif _Block.is_raised is not None and _Block.is_raised() and self._attribute == "stdout":
            raise _print_error(error) from error
        elif self.error is None:
            self.error = error


def guard():
    """Makes the standard streams of this process safe; must be called before it opens any file.

    A closed descriptor is opened on ``/dev/null``. Otherwise the next opened file would get its number, and output of C
    libraries or child processes would go into that file.
    """
    closed = set()
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets this number, as lower ones are open
            os.set_inheritable(nowhere, True)
            closed.add(number)
    streams = {name: _safe(name, number if number in closed else None) for number, name in enumerate(_NAMES, 1)}
    if sys.stdin is None:
        streams["stdin"] = open(0, closefd=False)  # noqa: SIM115 (it stays)
    for attribute, stream in streams.items():
        setattr(sys, attribute, stream)


@contextlib.contextmanager
def guarded():
    """A context with safe streams, if :func:`guard` was not called, or the streams were replaced.

    Lost output is reported only inside of :func:`view` or :func:`raising`.
    """
    before = {attribute: getattr(sys, attribute) for attribute in _NAMES}
    safe = {attribute: _safe(attribute) for attribute in _NAMES}
    for attribute, stream in safe.items():
        setattr(sys, attribute, stream)
    try:
        yield
    finally:
        _flush()
        for attribute, stream in safe.items():
            if getattr(sys, attribute) is stream:
                setattr(sys, attribute, before[attribute])


def run(main):
    """Calls the main function of a command whose streams are guarded; returns its exit code.

    If standard output could not be written, one line on standard error says so, and 0 becomes 1. A reader that has
    ended, as with ``| head``, is not reported.
    """
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except ReaderGone:
        code = 1
    except PrintError as error:
        code = _reported(error)
    error = _pending_error()
    if error is not None and error.errno != errno.EPIPE:
        code = code or _reported(_print_error(error))
    return code


@contextlib.contextmanager
def view(rest):
    """A context in which output is secondary: work continues if a stream cannot be written.

    One line on the other stream says so, once.

    Args:
        rest: the end of that line: what continues, and where the rest of the output is.
    """
    with guarded():
        before, _Block.rest = _Block.rest, rest
        try:
            for raw in filter(None, map(_descriptor, _NAMES)):
                raw.say_now()
            yield
        finally:
            _flush()
            _Block.rest = before


@contextlib.contextmanager
def raising(when):
    """A context in which a print raises if standard output cannot be written.

    Args:
        when: function without arguments that is called at a failure, and returns whether to raise.

    Raises:
        PrintError: inside of the context, or at its end.
    """
    with guarded():
        before, _Block.is_raised = _Block.is_raised, when
        try:
            yield
            _flush()
        finally:
            _Block.is_raised = before


def say(text):
    """Prints a text on standard output, and flushes it.

    Raises:
        PrintError: it cannot be printed.
    """
    with raising(lambda: True):
        print(text, flush=True)


def bars_are_off():
    """Returns the argument ``disable`` of ``tqdm``: ``None``, for off unless standard error is a terminal.

    ``tqdm`` fails if ``sys.stderr`` is ``None``, as in a service.
    """
    return True if sys.stderr is None else None


def _safe(attribute, closed=None):
    """Returns a safe stream to replace a stream of ``sys``. ``closed``: its descriptor, if it was closed."""
    stream, is_closed = getattr(sys, attribute), closed is not None
    settings = {"encoding": "utf-8", "errors": "backslashreplace"}
    if stream is None or getattr(stream, "closed", False):
        return io.TextIOWrapper(_Descriptor(attribute, closed, True), **settings)
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream.buffer, _Descriptor):
        return stream
    try:
        number = stream.fileno()
    except OSError:  # it is in memory, and cannot fail
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    settings |= {"encoding": stream.encoding, "line_buffering": stream.line_buffering}
    return io.TextIOWrapper(_Descriptor(attribute, number, is_closed), write_through=stream.write_through, **settings)


def _tell(attribute, line):
    other = sys.stderr if attribute == "stdout" else sys.stdout
    if other is not None:
        print(one_line(line), file=other, flush=True)


def _flush():
    for attribute in _NAMES:
        if _descriptor(attribute) is not None:
            getattr(sys, attribute).flush()


def _descriptor(attribute):
    stream = getattr(sys, attribute)
    raw = stream.buffer if isinstance(stream, io.TextIOWrapper) and not stream.closed else None
    return raw if isinstance(raw, _Descriptor) else None


def _pending_error():
    """Returns the error of standard output that was not reported yet, or ``None``."""
    _flush()
    raw = _descriptor("stdout")
    return None if raw is None else raw.error


def _print_error(error):
    kind = ReaderGone if error.errno == errno.EPIPE else PrintError
    return kind(f"{_NAMES['stdout']}: {error.strerror}")


def _reported(error):
    print(f"error: {error}", file=sys.stderr)
    return 1
