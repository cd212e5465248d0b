"""Ctrl-C without tracebacks: while a command is imported, while it runs, and while it ends."""

import contextlib
import os
import signal
import sys
import threading

INTERRUPTED = 130  # exit code: 128 plus the number of the signal, as in a shell


def end_quietly():
    """Makes Ctrl-C end the process at once from now on, with one line and exit code 130.

    For the top of a script, before imports, which take seconds. It changes nothing if Ctrl-C is ignored, such as under
    ``nohup``, or handled in another way.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raised_once():
    """A context in which the first Ctrl-C raises ``KeyboardInterrupt``, and the second ends the process at once.

    In between, threads and processes are shut down, which may take long. Outside of the main thread, and if Ctrl-C is
    ignored, it changes nothing.
    """
    return _handled(_raise)


@contextlib.contextmanager
def for_parent_only():
    """A context that delays Ctrl-C until its end; processes that are started inside ignore Ctrl-C forever.

    Ctrl-C goes to all processes of a terminal, even during their imports. A process must finish starting another one,
    which otherwise would miss a part of its data.
    """
    from multiprocessing import resource_tracker  # not at the start of each command

    resource_tracker.ensure_running()  # otherwise it starts inside, and unblocks the signal
    noted = []
    with _handled(lambda number, frame: noted.append(number)):  # other threads receive the signal, too
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # a child process inherits the mask
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if noted:
        signal.raise_signal(signal.SIGINT)


def run(main):
    """Calls the main function of a script, and returns its result; after Ctrl-C 130, with one line."""
    try:
        with raised_once():
            return main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _handled(handler):
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _raise(number, frame):
    signal.signal(signal.SIGINT, _end)
    raise KeyboardInterrupt


def _end(number, frame):
    with contextlib.suppress(OSError):  # the stream may be closed, or its terminal gone
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
