"""All that a check brings home as one file of less than 16 MiB: summaries, logs, small files, what is cached."""

import gzip
import io
import pathlib
import tarfile

from benchmarks.gpu_check import group, summary
from mixprec.app.commands.command_line import one_line
from mixprec.base import files
from mixprec.base.archives import Damaged, reading

NAME = "check.tgz"
_LARGEST = (16 << 20) - (64 << 10)  # bytes of the archive
_SUFFIXES = (".json", ".jsonl", ".txt", ".png")  # no pictures that are trained with, no snapshots
_FILE, _FILES = 2 << 20, 24 << 20  # bytes of a file, and of all of them, beside the logs
_CACHE = 14 << 20  # bytes of chosen engines and of what was compiled: there is room for them, compressed or not


class Home:
    """Writes the results as far as that is possible; what cannot be written is said once, and never ends the check.

    Args:
        out: folder for the files, a path; it may be absent.
        scratch: folder of the stages' files, a path.
        machine: dict from :func:`benchmarks.machine.record`.
        former: members of the archive that the check goes on from, as a dict from names to bytes; may be empty.
        say: callable that prints a line.
    """

    def __init__(self, out, scratch, machine, former, say):
        self._out, self._scratch, self._machine, self._say = out, scratch, machine, say
        self._logs = {name: data for name, data in former.items() if name.endswith(".log") and "/" not in name}
        self._said = set()

    def keep(self, results, outputs, complete):
        """Writes both summaries, and the archive unless a stage has only begun.

        Of a list of :class:`~benchmarks.gpu_check.summary.Result`, and a dict from names of stages to what they have
        printed.
        """
        members = {
            summary.JSON: summary.as_json(self._machine, results, complete=complete).encode(errors="replace"),
            summary.TEXT: summary.as_text(self._machine, results).encode(errors="replace"),
        }
        for name, data in members.items():
            self._write(name, [data])
        if any(result.state == summary.RUNNING for result in results):
            return
        self._logs |= {f"{name}.log": output for name, output in outputs.items()}
        found, cache = {}, {}
        try:
            made = [path for result in results for path in sorted((self._scratch / result.name).rglob("*"))]
            made = [path for path in made if path.suffix in _SUFFIXES and path.stat().st_size <= _FILE]
            found = self._contents(made, _FILES)
            # Choices of engines come first, then what was compiled for training, which runs before tests.
            paths = (self._scratch / "cache").rglob("*")
            paths = sorted(paths, key=lambda path: (path.suffix != ".json", path.stat().st_mtime_ns, path))
            cache = self._contents(paths, _CACHE)
        except OSError as error:  # a file that cannot be read
            self._complain(f"not all files are in {NAME}: {error}")
        # On a disk that is nearly full there may be room without the cache.
        self._write(NAME, (packed(members, self._logs, found, each) for each in (cache, {})))

    def _contents(self, paths, room):
        """Returns the contents of files by their names in the folder, of each that there is room for."""
        found = {}
        for path in paths:
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= room:
                data = found[path.relative_to(self._scratch).as_posix()] = path.read_bytes()
                room -= len(data)
        return found

    def _write(self, name, tries):
        """Writes the first of some contents that can be written."""
        path = self._out / name
        for data in tries:
            try:
                self._out.mkdir(parents=True, exist_ok=True)
                with files.replacing(path) as temporary, open(temporary, "wb") as file:
                    file.write(data)
                return
            except OSError as error:
                why = error.strerror or error
        self._complain(f"{path} cannot be written: {why}; the check goes on, and prints all")

    def _complain(self, line):
        if line not in self._said:
            self._said.add(line)
            self._say(f"check_gpu: {one_line(line)}")


def packed(members, logs, found, cache):
    """Returns the bytes of an archive: of these dicts from names to bytes as much as there is room for.

    What is cached is left out first, then the middle of logs, then all that stages have made.
    """
    for extra, size in (({**found, **cache}, 1 << 20), (found, 1 << 20), (found, 1 << 17), ({}, 1 << 14)):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
            for name, data in {**members, **{log: group.cut(logs[log], size) for log in logs}, **extra}.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        if buffer.tell() <= _LARGEST:
            break
    return buffer.getvalue()


def unpacked(path):
    """Returns the members of an archive as a dict from names to bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such archive.
    """
    try:
        with files.open_regular(path) as file, reading():
            content = gzip.GzipFile(fileobj=file).read(20 * _LARGEST)  # to its end, where its checksum stands
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
                names = [member for member in archive.getmembers() if member.isfile()]
                members = {member.name: archive.extractfile(member).read() for member in names}
    except Damaged as error:
        raise ValueError(f"no archive of a check: {error}") from None
    if summary.JSON not in members:
        raise ValueError(f"no archive of a check: it has no {summary.JSON}")
    return members


def write_files(folder, members):
    """Writes the members of stages and of the cache below a folder; names that lead out of it are left out.

    Raises:
        OSError: they cannot be written.
    """
    for name, data in members.items():
        path = pathlib.PurePosixPath(name)
        if len(path.parts) > 1 and not path.is_absolute() and ".." not in path.parts:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
