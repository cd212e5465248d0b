"""One run at a time in a results folder: the training command holds the lock while it writes."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import platform
import time

from mixprec.base import files
from mixprec.base.messages import OneLineError
from mixprec.base.process_limits import is_alive, start_of

FILE = "run.lock"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # NFS without lockd, some FUSE file systems


class LockError(OneLineError):
    """Another run has the results folder, or may have it; the message is one line and names its host and process."""


_held = set()  # folders of which this process holds the lock


@contextlib.contextmanager
def locked(folder):
    """Locks a results folder against other runs, on this machine and on others that share it.

    The lock is a POSIX lock on ``run.lock``, which the kernel, or the NFS server, releases when its holder ends, even
    by SIGKILL. Child processes do not hold it. The file names its holder, and is removed at the end. A killed run's
    file is taken over. If the file system has no locks, the file alone counts: if its process ran on this host and is
    gone, it is taken over; a file of another host is an error.

    Nothing else in this process may open the file: closing it again would release the lock.

    Args:
        folder: results folder, which exists.

    Raises:
        LockError: another run holds it, or may still hold it, or the file cannot be made.
    """
    path, key = os.path.join(folder, FILE), os.path.realpath(folder)
    if key in _held:
        raise LockError(f"{folder}: in use by another run, in this process; wait for its end, or give another --out")
    try:
        handle = _acquired(path, folder)
    except PermissionError as error:
        holder = _in_words(_holder_of(path))
        raise LockError(
            f"{folder}: in use by another user's run, {holder}; give another --out, or, if that run has ended, remove "
            f"{path}"
        ) from error
    except OSError as error:
        raise LockError(f"{path}: cannot be locked ({error.strerror}); remove it, or give another --out") from error
    _held.add(key)
    try:
        with contextlib.suppress(OSError):  # the disk is full: the lock works, but does not name its holder
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(_here()).encode(), 0)
        yield
    finally:
        _held.discard(key)
        # Removed while it is locked: a process that opens it now notices after locking that it is gone, and starts
        # again.
        with contextlib.suppress(OSError):
            os.remove(path)
        os.close(handle)


def _acquired(path, folder):
    """Returns the handle of the locked file."""
    while True:
        try:
            handle, is_new = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            try:
                handle, is_new = os.open(path, _OPEN), False
            except FileNotFoundError:  # removed since
                continue
        try:
            _acquire(handle, folder, path, is_new)
            if _is_still(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _acquire(handle, folder, path, is_new):
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise LockError(
                f"{folder}: in use by another run, {_in_words(_holder_soon(handle))}; wait for its end, or give "
                "another --out"
            ) from None
        if error.errno not in _NO_LOCKS:
            raise
        holder = _holder(handle)
        if is_new or (holder.get("host") == platform.node() and not is_alive(holder)):
            return
        raise LockError(
            f"{folder}: perhaps in use by another run, {_in_words(holder)}: this file system has no locks, so that "
            f"mixprec cannot tell; if that run has ended, remove {path}"
        ) from None


def _here():
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {"host": platform.node(), "pid": os.getpid(), "start": start_of(os.getpid()), "since": now}


def _holder(handle):
    """Returns the description of the run in the file; empty if there is none."""
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _holder_soon(handle):
    """Returns the same, after a short wait if the run has the lock, but has not written its description yet."""
    for _ in range(100):
        holder = _holder(handle)
        if holder:
            break
        time.sleep(0.01)
    return holder


def _holder_of(path):
    """Returns the same for a file that can be read, but not written."""
    try:
        with files.open_regular(path, follow=False) as file:
            return _holder(file.fileno())
    except OSError:
        return {}


def _in_words(holder):
    known = all(key in holder for key in ("host", "pid", "since"))
    return "process {pid} on {host} since {since}".format(**holder) if known else "which left no description"


def _is_still(handle, path):
    """Returns ``True`` if the path still leads to the file that was opened."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
