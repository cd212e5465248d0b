"""Ctrl-C without tracebacks: while a command is imported, when it runs, and when it is ending."""

import contextlib
import os
import signal
import sys
import threading

INTERRUPTED = 130  # exit code: 128 and the number of the signal, as of a shell


def end_quietly():
    """From here on Ctrl-C ends the process at once, with one line and exit code 130.

    For the top of a script, before the seconds that imports take. It changes nothing where Ctrl-C is ignored, such as
    under ``nohup``, or handled otherwise.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raised_once():
    """In the block the first Ctrl-C raises ``KeyboardInterrupt``, and the second one ends the process at once.

    Between the two is what ends threads and processes, and may take long. Outside of the main thread, and where Ctrl-C
    is ignored, it changes nothing.
    """
    return _handled(_raise)


@contextlib.contextmanager
def for_parent_only():
    """In the block Ctrl-C waits until its end, and the processes that start there never take notice of it.

    Ctrl-C goes to all processes of a terminal, while they are imported, too. A process that has begun to start another
    one has to finish that first: what it has not told it would be missed there.
    """
    from multiprocessing import resource_tracker  # not in the first moments of each command

    resource_tracker.ensure_running()  # or it starts in the block, and takes the signal off the mask
    noted = []
    with _handled(lambda number, frame: noted.append(number)):  # other threads take the signal, too
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # which a process inherits
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if noted:
        signal.raise_signal(signal.SIGINT)


def run(main):
    """Calls the main function of a script, and returns what it returns; after Ctrl-C 130, with one line."""
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
    with contextlib.suppress(OSError):  # it may be closed, or its terminal gone
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
