"""Files that are either complete or not there."""

import contextlib
import os
import tempfile

TEMPORARY = ".tmp-"  # how the names of temporary files begin; a killed process may leave one


@contextlib.contextmanager
def replacing(path):
    """Gives the path of a temporary file beside ``path``; on success it is synced to disk and renamed to ``path``.

    After an exception the temporary file is removed and ``path`` is as it was.

    Args:
        path: file to write or to replace.

    Yields:
        str: where to write, with the suffix of ``path``.
    """
    folder, name = os.path.split(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, suffix=os.path.splitext(name)[1], dir=folder)
    os.close(handle)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def write_text(path, text):
    """Writes ``text`` (UTF-8) to ``path``, atomically."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
