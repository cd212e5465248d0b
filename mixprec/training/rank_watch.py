"""Says which rank was killed: launchers end the others at once, and may name one of those.

The first rank of each machine calls :func:`start`, which makes a process that imports nothing of mixprec. It runs as
long as the ranks of this machine, and prints one line if one of them ends without :func:`leave`.
"""

import contextlib
import os
import select
import socket
import subprocess
import sys


def start(ranks):
    """Watches the ranks of this machine; to be called before any of them calls :func:`leave`.

    Args:
        ranks: dict of ranks and their process numbers, this process among them.
    """
    with contextlib.ExitStack() as files, contextlib.suppress(AttributeError, OSError):  # there may be no pidfd_open
        messages, words = files.enter_context(_socket()), []
        messages.bind(_address(ranks))
        descriptors = [messages.fileno()]
        for rank, process in ranks.items():
            descriptors.append(os.pidfd_open(process))
            files.callback(os.close, descriptors[-1])
            words.append(f"{descriptors[-1]}:{rank}:{process}")
        # In a session of its own it is left alone when the launcher ends the ranks.
        watch = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(messages.fileno()), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )
        watch.returncode = 0  # nothing waits for it


def leave(ranks, which):
    """Says that ranks of this machine are about to end, and that it is known why.

    Args:
        ranks: as for :func:`start`.
        which: ranks, iterable.
    """
    with contextlib.suppress(OSError), _socket() as messages:
        messages.sendto(" ".join(map(str, which)).encode(), _address(ranks))


def _socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _address(ranks):
    return f"\0mixprec-ranks-{min(ranks.values())}"  # of no file


def _watch(messages, words):
    processes = {}  # descriptors, and ranks with their process numbers
    for descriptor, rank, process in (map(int, word.split(":")) for word in words):
        processes[descriptor] = rank, process
    left = set()
    while processes:
        ready, _, _ = select.select([messages, *processes], [], [])
        ended = [processes.pop(descriptor) for descriptor in ready if descriptor in processes]
        while select.select([messages], [], [], 0)[0]:
            left.update(map(int, messages.recv(1 << 16).split()))
        lost = [f"rank {rank}: process {process}" for rank, process in sorted(ended) if rank not in left]
        if lost:
            line = f"{', '.join(lost)} on {os.uname().nodename} was killed, or has crashed; all ranks end\n"
            with contextlib.suppress(OSError):  # nothing reads it
                os.write(2, line.encode())
            return


if __name__ == "__main__":
    _watch(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
