"""File access: atomic writing, refusal of devices and pipes, and folders in which links are not followed."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

TEMPORARY = ".tmp-"  # prefix of temporary files; a killed process may leave one
_closed = []  # pairs of root and folder, see closed()


@contextlib.contextmanager
def closed(root, folder):
    """A context in which no function of this module follows links in a folder, or on the path to it from a root.

    So everything that a process reads or writes there, through any function, really is there. Hard links cannot be
    distinguished from files.

    Args:
        root: path of a folder, to which links may lead.
        folder: path of the folder: the root, or one below it.
    """
    pair = os.path.abspath(root), os.path.abspath(folder)
    _closed.append(pair)
    try:
        yield
    finally:
        _closed.remove(pair)


def is_closed(path):
    """Returns ``True`` if a path lies in a folder that is closed to links now."""
    return _root_of(path) is not None


def _root_of(path):
    if not _closed:
        return None
    path = os.path.abspath(os.fsdecode(path))
    return next((root for root, folder in _closed if path == folder or path.startswith(os.path.join(folder, ""))), None)


@contextlib.contextmanager
def folder_below(root, path):
    """Opens a folder without following links on the path from a root, even if one is created concurrently.

    Args:
        root: path of a folder, to which links may lead.
        path: path of the folder: the root, or one below it.

    Yields:
        int: a descriptor, for the argument ``dir_fd`` of functions of :mod:`os`.

    Raises:
        OSError: the folder does not exist, or there is a link on the path.
    """
    names = os.path.relpath(path, root).split(os.sep)
    if ".." in names:
        raise OSError(errno.EINVAL, f"not below {os.fspath(root)}", os.fspath(path))
    with contextlib.ExitStack() as opened:
        with _naming(path):
            handle = opened.enter_context(folder(root))
            for name in names:
                handle = opened.enter_context(folder(name, dir_fd=handle, follow=False))
        yield handle


@contextlib.contextmanager
def folder(path, *, dir_fd=None, follow=True):
    """Opens a folder, as :func:`folder_below` does.

    Args:
        path: path of the folder.
        dir_fd: descriptor of the folder that the path is relative to, as for :func:`os.open`.
        follow: whether it may be a link.
    """
    handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), dir_fd=dir_fd)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def listing(handle):
    """Lists an open folder.

    Args:
        handle: descriptor from :func:`folder`.

    Yields:
        list of :class:`os.DirEntry`, sorted by name, without paths.

    Raises:
        OSError: it cannot be listed.
    """
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    try:
        with os.scandir(readable) as entries:
            yield sorted(entries, key=lambda entry: entry.name)
    finally:
        os.close(readable)


def open_below(root, path):
    """As :func:`open_regular`, without following links on the path from a root; see :func:`folder_below`."""
    folder, name = os.path.split(path)
    with folder_below(root, folder) as handle, _naming(path):
        return open_regular(name, follow=False, dir_fd=handle)


@contextlib.contextmanager
def _naming(path):
    """A context in which errors name a file by its path, not by the argument of the system call."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def replacing(path, sync=True):
    """Yields the path of a temporary file beside ``path``; on success it is synced to disk and renamed to ``path``.

    After an exception the temporary file is removed and ``path`` is unchanged.

    Args:
        path: file to write or to replace, not a device or a pipe.
        sync: whether to wait until it is on disk; without, it may be empty after a power cut.

    Yields:
        str: where to write, with the suffix of ``path``.
    """
    with replacing_all([path], sync) as (temporary,):
        yield temporary


@contextlib.contextmanager
def replacing_all(paths, sync=True):
    """As :func:`replacing`, for files that belong together: none is renamed before all are on disk.

    Args:
        paths: list of files, each of which may exist already.
        sync: as for :func:`replacing`.

    Yields:
        list of str: where to write, in the order of ``paths``.
    """
    with contextlib.ExitStack() as opened:
        yield from _replaced([opened.enter_context(_target(path)) for path in paths], sync)


@contextlib.contextmanager
def _target(path):
    """Yields a path of a file to replace that does not go through links if its folder is :func:`closed`."""
    root = _root_of(path)
    if root is None:
        with contextlib.suppress(FileNotFoundError):
            # The rename would even replace /dev/null, and the link /dev/stdout.
            is_device = os.path.islink(path) and os.path.abspath(path).startswith(("/dev/", "/proc/"))
            _require_regular(path, os.lstat(path) if is_device else os.stat(path))
        yield path
        return
    folder, name = os.path.split(os.path.abspath(path))
    with folder_below(root, folder) as handle:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if not stat.S_ISLNK(status.st_mode):  # the rename replaces a link, not its target
                _require_regular(path, status)
        if folder == root:
            yield path
            return
        with _naming(path):
            yield f"/proc/self/fd/{handle}/{name}"


def _replaced(paths, sync):
    temporaries = []
    try:
        for path in paths:
            folder, name = os.path.split(os.path.abspath(path))
            with _naming(path):
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


def check_writable(path):
    """Raises an ``OSError`` if :func:`replacing` cannot write a file at ``path``; leaves nothing there."""
    with _target(path) as target, tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(target))):
        pass


def open_regular(path, *, follow=True, dir_fd=None):
    """Opens a regular file for reading bytes; refuses devices and pipes, whose opening may block or have effects.

    Args:
        path: path of a file, or of a link to one.
        follow: whether it may be a link; never in a folder that is :func:`closed`.
        dir_fd: descriptor of the folder that the path is relative to, as for :func:`os.open`.

    Returns:
        A binary file.

    Raises:
        OSError: as ``open``; or it is a device, a pipe or a socket, or a link that is not followed. It is not opened.
    """
    root = _root_of(path) if dir_fd is None else None
    if root is not None:
        return open_below(root, os.path.abspath(path))
    _require_regular(path, os.stat(path, dir_fd=dir_fd, follow_symlinks=follow))
    # A pipe may have been created there in between: opening it must not block.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        _require_regular(path, os.fstat(descriptor))
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path, largest, *, follow=True, dir_fd=None):
    """Returns the bytes of a file that is opened by :func:`open_regular`.

    Args:
        path: path of the file.
        largest (int): number of bytes above which the file is refused.
        follow: as for :func:`open_regular`.
        dir_fd: as for :func:`open_regular`.

    Raises:
        OSError: as :func:`open_regular`; or the file is larger.
    """
    with open_regular(path, follow=follow, dir_fd=dir_fd) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest >> 10} KiB", os.fspath(path))
    return content


def cache_folder():
    """Returns mixprec's folder in the user's cache folder (XDG Base Directory 0.8), a :class:`pathlib.Path`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says to ignore relative paths.
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "mixprec"


def write_text(path, text, sync=True):
    """Writes ``text`` (UTF-8) to ``path``, atomically; ``sync`` is as for :func:`replacing`."""
    with replacing(path, sync) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


def _require_regular(path, status):
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a link, which is not followed", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a device, pipe or socket, not a file", os.fspath(path))


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
