"""Says which rank was killed: launchers end the others at once, and may name one of those.

The first rank of each machine calls :func:`start`, which makes a process that imports nothing of mixprec. It runs as
long as the ranks of this machine, and prints one line if one of them ends without :func:`leave`. Where rank 0 did not
end by itself, but by what happened to another rank, the results folder then says that the run has failed.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import time

_kept = []  # descriptors that are open until the process ends
# Of a file that is gone, or is or holds something else.
_NOT_OURS = OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError
_folders = {}  # pipes to watches that this process has started, by the number of their first rank's process
_LEAVE, _TIE = b"leave", b"tie"  # messages
_HIGH = 128  # the kernel closes high descriptors of a process that ends before low ones


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
        folder, _folders[min(ranks.values())] = os.pipe()
        files.callback(os.close, folder)
        # In a session of its own it is left alone when the launcher ends the ranks.
        watch = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(messages.fileno()), *words],
            stdin=folder,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )
        watch.returncode = 0  # nothing waits for it


def tie(ranks, rank):
    """Lets the watch see the end of a rank, which calls this, before the launcher does, and ends the others.

    A process closes its files, the launcher's among them, before it is gone. On a loaded machine others may be gone by
    then. So the watch sees a file of each rank as well, or its process alone where a process may not have many files.

    Args:
        ranks: as for :func:`start`, which the first rank has called.
        rank: of this process.
    """
    with contextlib.suppress(OSError), _socket() as messages:
        messages.connect(_address(ranks))  # Python 3.11's send_fds leaves an address out
        ours, of_watch = socket.socketpair()
        with ours, of_watch:
            _kept.append(fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _HIGH))
            socket.send_fds(messages, [b"%b %d" % (_TIE, rank)], [of_watch.fileno()])


def leave(ranks, which):
    """Says that ranks of this machine are about to end, and that it is known why.

    Args:
        ranks: as for :func:`start`.
        which: ranks, iterable.
    """
    with contextlib.suppress(OSError), _socket() as messages:
        messages.sendto(b"%b %b" % (_LEAVE, " ".join(map(str, which)).encode()), _address(ranks))


def works_in(ranks, out):
    """Says where rank 0, which calls this, writes what :func:`_clear` looks after.

    Args:
        ranks: as for :func:`start`.
        out: results folder.
    """
    with contextlib.suppress(OSError, KeyError):  # there is no watch
        os.write(_folders[min(ranks.values())], os.fsencode(os.path.abspath(out)) + b"\0")


def is_first_to_fail(ranks):
    """Returns whether no other rank of this machine has called this: the one that then says why all of them end.

    Args:
        ranks: as for :func:`start`.
    """
    with _socket() as claim:
        try:
            claim.bind(f"{_address(ranks)}-failed")
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        _kept.append(claim.detach())
    return True


def _socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _address(ranks):
    return f"\0mixprec-ranks-{min(ranks.values())}"  # of no file


def _watch(messages, words):
    """Waits for the end of all ranks; names the first one that has not said why. The launcher ends those after it."""
    processes, ends, ties = {}, select.epoll(), {}  # which gives ends in their order, also if they are long ago
    for descriptor, rank, process in (map(int, word.split(":")) for word in words):
        processes[descriptor] = rank, process
        ends.register(descriptor, select.EPOLLIN)
    numbers = dict(processes.values())
    ends.register(messages, select.EPOLLIN)
    os.set_blocking(0, False)
    ended, left, is_named = [], set(), False
    while processes:
        ((descriptor, _),) = ends.poll(maxevents=1)
        while select.select([messages], [], [], 0)[0]:
            (kind, _, text), passed = _message(messages)
            if passed is not None:
                ties[passed] = int(text)
                ends.register(passed, select.EPOLLIN)
            elif kind == _LEAVE:
                left.update(map(int, text.split()))
        if descriptor == messages.fileno():
            continue
        ends.unregister(descriptor)
        if descriptor in ties:
            ended.append(ties[descriptor])
            continue
        rank, process = processes.pop(descriptor)
        ended.append(rank)
        lost = [rank for rank in ended if rank not in left]
        if lost and not is_named:
            who = f"rank {lost[0]}: process {numbers[lost[0]]} on {os.uname().nodename}"
            with contextlib.suppress(OSError):  # nothing reads it
                os.write(2, f"{who} was killed, or has crashed; all ranks end\n".encode())
            is_named = True
        if rank == 0:
            with contextlib.suppress(*_NOT_OURS):
                _clear(os.read(0, 1 << 16).split(b"\0")[-2], process)


def _message(messages):
    """Returns a message in three parts, kind, space, text, and the descriptor that came with it, or ``None``."""
    data, descriptors, _, _ = socket.recv_fds(messages, 1 << 16, 1)
    return data.partition(b" "), *(descriptors or [None])


def _clear(out, process):
    """Does what rank 0 could not do at its end: it gives the lock up, and says that the run has failed.

    Args:
        out: results folder, bytes.
        process: number of rank 0's, which is gone. A file of another run is left alone.
    """
    path, here = os.path.join(out, b"run.lock"), {"pid": process, "host": os.uname().nodename}
    with open(path, "r+b", opener=_no_link) as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):  # a run that has begun since; others: there are no locks
                raise
        if not here.items() <= json.loads(lock.read()).items():
            return
        for name in os.listdir(out):
            if name.startswith(b".tmp-"):
                with contextlib.suppress(OSError):  # a folder
                    os.remove(os.path.join(out, name))
        with contextlib.suppress(*_NOT_OURS):
            _fail(out, here)
        os.remove(path)


def _no_link(path, flags):
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _fail(out, here):
    path, temporary = os.path.join(out, b"status.json"), os.path.join(out, b".tmp-status.json")
    with open(path, encoding="utf-8", opener=_no_link) as file:
        status = json.load(file)
    if here.items() <= status.items() and status["state"] in ("training", "evaluating"):
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(json.dumps(status | {"state": "failed", "seconds_left": None, "time": time.time()}) + "\n")
        os.replace(temporary, path)


if __name__ == "__main__":
    _watch(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
