"""Bounds of time and memory for what might wait for ever, or read without end. They are no measure of speed."""

import contextlib
import resource
import signal


class Endless(BaseException):
    """No ``Exception``: what is watched must not take it for an error of its own."""


@contextlib.contextmanager
def guarded(seconds=60, mib=2048):
    """Ends the block after a time, and lets the process have that much more memory than it has now.

    Args:
        seconds: of the clock; ``Endless`` is raised then.
        mib: MiB of address space; ``MemoryError`` is raised above it. ``None`` for no bound.
    """

    def ring(*_):
        raise Endless(f"still at work after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    signal.alarm(seconds)
    try:
        if mib is not None:
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + (mib << 20), limits[1]))
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
