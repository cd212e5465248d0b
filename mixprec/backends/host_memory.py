"""How much memory of the host there is for this process."""

import os
import pathlib


def host_memory(root=pathlib.Path("/")):
    """Returns the bytes of memory of the machine, or the limit of a control group of this process if that is less.

    Args:
        root: of the file system, a ``pathlib.Path``.
    """
    lines = _read(root / "proc/meminfo").splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    return min([total, *_limits(root)])


def resident_memory():
    """Returns the bytes of memory that this process has now."""
    pages = int(_read(pathlib.Path("/proc/self/statm")).split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limits(root):
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # In a container the path may be that of the host, which is not there.
        for group in (pathlib.PurePath(path.lstrip("/")), *pathlib.PurePath(path.lstrip("/")).parents):
            limit = _read(folder / group / ("memory.limit_in_bytes" if controllers else "memory.max"))
            if limit.isdecimal():
                yield int(limit)


def _read(path):
    try:
        return path.read_text().strip()
    except OSError:
        return ""
