"""How much memory of the host there is for this process."""

import os
import pathlib

from mixprec.control_groups import groups, read


def host_memory(root=pathlib.Path("/")):
    """Returns the bytes of memory of the machine, or the limit of a control group of this process if that is less.

    Args:
        root: of the file system, a ``pathlib.Path``.
    """
    lines = read(root / "proc/meminfo").splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    return min([total, *_limits(root)])


def resident_memory():
    """Returns the bytes of memory that this process has now."""
    pages = int(read(pathlib.Path("/proc/self/statm")).split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limits(root):
    for folder, is_first in groups("memory", root):
        limit = read(folder / ("memory.limit_in_bytes" if is_first else "memory.max"))
        if limit.isdecimal():
            yield int(limit)
