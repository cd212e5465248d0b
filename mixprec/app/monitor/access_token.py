"""The token that opens the pages: from the environment, or drawn and kept in a file that only its owner can read."""

import contextlib
import os
import platform
import re
import secrets
import stat

from mixprec.base.files import TEMPORARY, cache_folder
from mixprec.base.messages import OneLineError, reworded
from mixprec.base.variables import MONITOR_TOKEN as VARIABLE

_ALLOWED = re.compile(r"[A-Za-z0-9._~-]{16,256}")  # characters that need no escapes in an address


class TokenError(OneLineError):
    """The token is invalid, or cannot be stored; the message is one line that does not contain it."""


def take_given(environment):
    """Removes the token from an environment, so that processes started later do not have it.

    Args:
        environment: ``os.environ``, or a dict.

    Returns:
        str or None: ``None`` if none is given.

    Raises:
        TokenError: it is too short, or has other characters.
    """
    token = environment.pop(VARIABLE, "")
    if token and not _ALLOWED.fullmatch(token):
        raise TokenError(
            f"{VARIABLE}: not a valid token, found {len(token)} characters; "
            "wanted: 16 to 256 letters, digits, '.', '_', '~' and '-'"
        )
    return token or None


def draw():
    """Returns a new token."""
    return secrets.token_urlsafe(32)


def token_file(port):
    """Returns the path of the token for a port of this machine; machines of a cluster share the home."""
    host = re.sub(r"[^\w.-]", "_", platform.node())
    return cache_folder() / "monitor" / f"{host}-{port}.token"


@contextlib.contextmanager
def kept(token, path):
    """Stores a token in a file of mode 0600 while the block runs.

    Everything is done relative to the open folder, which must belong to the user and must not be a link: the cache may
    lie where others can write.

    Args:
        token: text.
        path: the file, in a folder that nothing else uses.

    Raises:
        TokenError: it cannot be written; nothing is left.
    """
    with reworded(lambda reason: TokenError(f"{path.parent}: {reason}")):
        folder = _open_folder(path.parent)
    try:
        _write(folder, path, token)
        try:
            yield
        finally:
            _remove(folder, path.name, token)
    finally:
        os.close(folder)


def _open_folder(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid():
            raise PermissionError(0, "it belongs to another account")
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(folder, 0o700)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _write(folder, path, token):
    temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            os.fchmod(file, 0o600)  # independent of the umask
            os.write(file, f"{token}\n".encode())
        finally:
            os.close(file)
        os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def _remove(folder, name, token):
    """Removes the file, unless another server has written its own by now."""
    with contextlib.suppress(OSError):
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), encoding="utf-8") as file:
            if file.read(1024).strip() != token:
                return
        os.unlink(name, dir_fd=folder)
