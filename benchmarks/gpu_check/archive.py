"""All that a check brings home as one file of less than 16 MiB: summaries, logs, small files, what is cached."""

import io
import pathlib
import tarfile

from benchmarks.gpu_check import stage_summary

NAME = "check.tgz"
LARGEST = (16 << 20) - (64 << 10)  # bytes of the archive
_SUFFIXES = (".json", ".jsonl", ".txt", ".xml", ".yaml")  # no images, no snapshots
_FILE, _FILES = 2 << 20, 24 << 20  # bytes of a file, and of all of them, beside the logs
_CACHE = 16 << 20  # bytes of chosen engines and of what was compiled, which is a third of that in the archive
CACHES = ("mixprec", "cupy")  # folders, those first that are worth most
_LOG_SIZES = (1 << 20, 1 << 17, 1 << 14)  # bytes of a log: the first with which the archive is small enough


def cut(data, size):
    """Returns at most about ``size`` bytes, of which both ends are those of ``data``."""
    if len(data) <= size:
        return data
    gap = f"\n... {len(data) - size} bytes are left out ...\n".encode()
    return data[: size // 2] + gap + data[-(size // 2) :]


def collect(folder):
    """Returns the small files of text below a folder, as a dict from relative names to bytes; what is too large is out.

    Args:
        folder: a path; it may be absent.
    """
    found, total = {}, 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.suffix in _SUFFIXES and path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            if size <= _FILE and total + size <= _FILES:
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
                total += size
    return found


def cached(folder):
    """Returns likewise what is in the folders :data:`CACHES` below a folder, as far as there is room.

    In each of them choices come first, then the oldest files: what was compiled for training, which runs before tests.
    """
    found, total = {}, 0
    for name in CACHES:
        files = [path for path in (folder / name).rglob("*") if path.is_file() and not path.is_symlink()]
        for path in sorted(files, key=lambda path: (path.suffix != ".json", path.stat().st_mtime_ns, path)):
            if total + path.stat().st_size <= _CACHE:
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
                total += path.stat().st_size
    return found


def packed(members, logs, cache):
    """Returns the bytes of an archive.

    Args:
        members: dict from names to bytes.
        logs: likewise; they are cut, if need be to 16 KiB.
        cache: likewise; it is left out, with the larger files, if there is not room for all.
    """
    for size in _LOG_SIZES:
        cut_logs = {name: cut(data, size) for name, data in logs.items()}
        for extra in ({f"cache/{name}": data for name, data in cache.items()}, {}):
            data = _tar({**members, **cut_logs, **extra})
            if len(data) <= LARGEST:
                return data
    texts = {name: data for name, data in members.items() if name in (stage_summary.JSON, stage_summary.TEXT)}
    return _tar({**texts, **cut_logs})


def unpacked(path):
    """Returns the members of an archive as a dict from names to bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such archive.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            names = [member for member in archive.getmembers() if member.isfile()]
            if sum(member.size for member in names) > 20 * LARGEST:
                raise ValueError("it holds more than an archive of a check")
            return {member.name: archive.extractfile(member).read() for member in names}
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"no archive of a check: {error}") from None


def write_files(folder, members):
    """Writes members below a folder; those whose names lead out of it are left out.

    Raises:
        OSError: they cannot be written.
    """
    for name, data in members.items():
        path = pathlib.PurePosixPath(name)
        if not path.is_absolute() and ".." not in path.parts:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)


def _tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=4) as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
