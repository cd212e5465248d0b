"""Reports which rank was killed: launchers end the others at once, and may name one of these instead.

The first rank of each machine calls :func:`start`, which starts a process that imports nothing of mixprec. It runs as
long as the ranks of this machine, and prints one line if one of them ends without :func:`leave`. If rank 0 was ended
because of another rank, it also records in the results folder that the run has failed.
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

_kept = []  # descriptors that stay open until the process ends
# Errors for a file that is gone, or has another type or content.
_NOT_OURS = OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError
_folders = {}  # PID of the first rank -> pipe to its watch, which this process has started
_LEAVE, _TIE = b"leave", b"tie"  # messages
_HIGH = 128  # the kernel closes high descriptors of a process that ends before low ones


def start(ranks):
    """Watches the ranks of this machine; must be called before any of them calls :func:`leave`.

    Args:
        ranks: dict from ranks to their process numbers, including this process.
    """
    with contextlib.ExitStack() as files, contextlib.suppress(AttributeError, OSError):  # pidfd_open may be missing
        messages, words = files.enter_context(_socket()), []
        messages.bind(_address(ranks))
        descriptors = [messages.fileno()]
        for rank, process in ranks.items():
            descriptors.append(os.pidfd_open(process))
            files.callback(os.close, descriptors[-1])
            words.append(f"{descriptors[-1]}:{rank}:{process}")
        folder, _folders[min(ranks.values())] = os.pipe()
        files.callback(os.close, folder)
        # In its own session it survives when the launcher ends the ranks.
        watch = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(messages.fileno()), *words],
            stdin=folder,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )
        watch.returncode = 0  # nothing waits for it


def tie(ranks, rank):
    """Lets the watch detect the end of the calling rank before the launcher does and ends the others.

    A process closes its files, including the launcher's, before it is gone. On a loaded machine other ranks may be gone
    by then. So the watch also monitors a file of each rank, or only its process if the limit of open files is low.

    Args:
        ranks: as for :func:`start`, which the first rank has called.
        rank: rank of this process.
    """
    with contextlib.suppress(OSError), _socket() as messages:
        messages.connect(_address(ranks))  # Python 3.11's send_fds ignores its address
        ours, of_watch = socket.socketpair()
        with ours, of_watch:
            _kept.append(fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _HIGH))
            socket.send_fds(messages, [b"%b %d" % (_TIE, rank)], [of_watch.fileno()])


def leave(ranks, which):
    """Tells the watch that ranks of this machine are about to end for a known reason.

    Args:
        ranks: as for :func:`start`.
        which: ranks, iterable.
    """
    with contextlib.suppress(OSError), _socket() as messages:
        messages.sendto(b"%b %b" % (_LEAVE, " ".join(map(str, which)).encode()), _address(ranks))


def works_in(ranks, out):
    """Tells the watch the results folder, for :func:`_clear`; called by rank 0.

    Args:
        ranks: as for :func:`start`.
        out: results folder.
    """
    with contextlib.suppress(OSError, KeyError):  # there is no watch
        os.write(_folders[min(ranks.values())], os.fsencode(os.path.abspath(out)) + b"\0")


def is_first_to_fail(ranks):
    """Returns whether this is the first rank of this machine to call this; it then prints why all ranks end.

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
    return f"\0mixprec-ranks-{min(ranks.values())}"  # an abstract address, without a file


def _watch(messages, words):
    """Waits for the end of all ranks; reports the first one without a reason. The launcher ends the others."""
    processes, ends, ties = {}, select.epoll(), {}  # epoll reports ends in order, even late
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
            with contextlib.suppress(OSError):  # standard error may be closed
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
    """Does what rank 0 could not do at its end: releases the lock, and records that the run has failed.

    Args:
        out: results folder, bytes.
        process: process number of rank 0, which is gone. Files of other runs are not touched.
    """
    path, here = os.path.join(out, b"run.lock"), {"pid": process, "host": os.uname().nodename}
    with open(path, "r+b", opener=_no_link) as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):  # held by a newer run; else: no lock support
                raise
        if not here.items() <= json.loads(lock.read()).items():
            return
        for name in os.listdir(out):
            if name.startswith(b".tmp-"):
                with contextlib.suppress(OSError):  # it may be a folder
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
