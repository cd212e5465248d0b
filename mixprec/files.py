"""Files that are either complete or not there, and reading of a path that may be no regular file."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

TEMPORARY = ".tmp-"  # how the names of temporary files begin; a killed process may leave one


@contextlib.contextmanager
def replacing(path, sync=True):
    """Gives the path of a temporary file beside ``path``; on success it is synced to disk and renamed to ``path``.

    After an exception the temporary file is removed and ``path`` is as it was.

    Args:
        path: file to write or to replace, no device or pipe.
        sync: whether to wait until it is on disk; without, it may be empty after a power cut.

    Yields:
        str: where to write, with the suffix of ``path``.
    """
    with replacing_all([path], sync) as (temporary,):
        yield temporary


@contextlib.contextmanager
def replacing_all(paths, sync=True):
    """As :func:`replacing`, of files that belong together: none is renamed before all are on disk.

    Args:
        paths: list of files, each of which may be there already.
        sync: as for :func:`replacing`.

    Yields:
        list of str: where to write, in the order of ``paths``.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            _require_regular(path, os.stat(path))  # the rename would put a file in the place of /dev/null, too
    temporaries = []
    try:
        for path in paths:
            folder, name = os.path.split(os.path.abspath(path))
            handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, suffix=os.path.splitext(name)[1], dir=folder)
            os.close(handle)
            temporaries.append(temporary)
        yield temporaries
        for temporary in temporaries:
            if sync:
                with open(temporary, "rb") as written:
                    os.fsync(written.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
        for temporary, path in zip(temporaries, paths, strict=True):
            os.replace(temporary, path)
    except BaseException:
        for temporary in temporaries:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
        raise


def open_regular(path, *, follow=True):
    """Opens a file for reading bytes, and nothing that never ends or waits, or does something when it is opened.

    Args:
        path: path of a file, or of a link to one.
        follow: whether it may be a link.

    Returns:
        A binary file.

    Raises:
        OSError: as ``open``; or it is a device, a pipe or a socket, or a link that is not followed. It is not opened.
    """
    _require_regular(path, os.stat(path, follow_symlinks=follow))
    # Between the two a pipe may have been put there: to open it must not wait either.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        _require_regular(path, os.fstat(descriptor))
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path, largest, *, follow=True):
    """Returns the bytes of a file, as :func:`open_regular` opens it.

    Args:
        path: path of the file.
        largest (int): number of bytes above which it is refused.
        follow: whether it may be a link.

    Raises:
        OSError: as :func:`open_regular`; or the file is larger.
    """
    with open_regular(path, follow=follow) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest >> 10} KiB", os.fspath(path))
    return content


def cache_folder():
    """Returns mixprec's folder in the user's cache folder (XDG Base Directory 0.8), a :class:`pathlib.Path`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "mixprec"


def write_text(path, text):
    """Writes ``text`` (UTF-8) to ``path``, atomically."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


def _require_regular(path, status):
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a device, pipe or socket, not a file", os.fspath(path))


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
