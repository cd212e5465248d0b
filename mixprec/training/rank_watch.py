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

_claim = []
_NOT_OURS = OSError, ValueError, LookupError, AttributeError  # of a file that is gone, or holds something else
_FOLDER = b"in "  # how a message begins that names the results folder; others are ranks


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


def works_in(ranks, out):
    """Says where rank 0, which calls this, writes what :func:`_clear` looks after.

    Args:
        ranks: as for :func:`start`.
        out: results folder.
    """
    with contextlib.suppress(OSError), _socket() as messages:
        messages.sendto(_FOLDER + os.fsencode(os.path.abspath(out)), _address(ranks))


def is_first_to_fail(ranks):
    """Returns whether no other rank of this machine has called this: the one that then says why all of them end.

    Args:
        ranks: as for :func:`start`.
    """
    _claim.append(_socket())  # open until the process ends
    try:
        _claim[-1].bind(f"{_address(ranks)}-failed")
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _address(ranks):
    return f"\0mixprec-ranks-{min(ranks.values())}"  # of no file


def _watch(messages, words):
    """Waits for the end of all ranks; names the first one that has not said why. The launcher ends those after it."""
    processes, ends = {}, select.epoll()  # epoll gives them in the order in which they ended, also if that is long ago
    for descriptor, rank, process in (map(int, word.split(":")) for word in words):
        processes[descriptor] = rank, process
        ends.register(descriptor, select.EPOLLIN)
    left, is_lost, out = set(), False, None
    while processes:
        ((descriptor, _),) = ends.poll(maxevents=1)
        ends.unregister(descriptor)
        rank, process = processes.pop(descriptor)
        while select.select([messages], [], [], 0)[0]:
            message = messages.recv(1 << 16)
            if message.startswith(_FOLDER):
                out = message[len(_FOLDER) :]
            else:
                left.update(map(int, message.split()))
        if rank not in left and not is_lost:
            who = f"rank {rank}: process {process} on {os.uname().nodename}"
            os.write(2, f"{who} was killed, or has crashed; all ranks end\n".encode())
            is_lost = True
        if rank == 0 and out is not None:
            with contextlib.suppress(*_NOT_OURS):
                _clear(out, process)


def _clear(out, process):
    """Does what rank 0 could not do at its end: it gives the lock up, and says that the run has failed.

    Args:
        out: results folder, bytes.
        process: number of rank 0's, which is gone. A file of another run is left alone.
    """
    path, here = os.path.join(out, b"run.lock"), {"pid": process, "host": os.uname().nodename}
    with open(path, "r+b") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):  # a run that has begun since; others: there are no locks
                raise
        if not here.items() <= json.loads(lock.read()).items():
            return
        for name in os.listdir(out):
            if name.startswith(b".tmp-"):
                os.remove(os.path.join(out, name))
        with contextlib.suppress(*_NOT_OURS):
            _fail(out, here)
        os.remove(path)


def _fail(out, here):
    path, temporary = os.path.join(out, b"status.json"), os.path.join(out, b".tmp-status.json")
    with open(path, encoding="utf-8") as file:
        status = json.load(file)
    if here.items() <= status.items() and status["state"] in ("training", "evaluating"):
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(status | {"state": "failed", "seconds_left": None, "time": time.time()}) + "\n")
        os.replace(temporary, path)


if __name__ == "__main__":
    _watch(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
