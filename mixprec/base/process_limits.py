"""The memory and the processors that this process may use, also in a container; and whether another one is alive.

Linux control groups, which containers use, are folders with files for the limits of a resource.
"""

import math
import os
import pathlib


def groups(controller, root=pathlib.Path("/")):
    """Yields the folders of the control group of this process and of its ancestors.

    Args:
        controller: name of the resource, ``"cpu"`` or ``"memory"``.
        root: root of the file system, a ``pathlib.Path``.

    Yields:
        ``(folder, is_first)``: a folder, which need not exist, and whether it belongs to version 1 of control groups.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        folder = root / "sys/fs/cgroup" / (controller if controllers else "")
        # In a container this may be the host's path, which does not exist there.
        for group in (pathlib.PurePath(path.lstrip("/")), *pathlib.PurePath(path.lstrip("/")).parents):
            yield folder / group, bool(controllers)


def read(path):
    """Returns the stripped text of a file, ``""`` if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def host_memory(root=pathlib.Path("/")):
    """Returns the bytes of memory of the machine, or the limit of this process's control group if smaller.

    Args:
        root: root of the file system, a ``pathlib.Path``.
    """
    lines = read(root / "proc/meminfo").splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    return min([total, *_limits(root)])


def resident_memory():
    """Returns the bytes of resident memory of this process."""
    pages = int(read(pathlib.Path("/proc/self/statm")).split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limits(root):
    for folder, is_first in groups("memory", root):
        limit = read(folder / ("memory.limit_in_bytes" if is_first else "memory.max"))
        if limit.isdecimal():
            yield int(limit)


def number_of_threads(root="/"):
    """Returns ``OMP_NUM_THREADS``, or else the number of cores for this process.

    These are the cores of the processors that it may run on, limited by the processor time of its control group (a
    container's).

    Args:
        root: the folder with ``proc`` and ``sys``.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    root = pathlib.Path(root)
    return max(1, int(min(_cores(root), _quota(root))))


def _cores(root):
    """The number of cores in the affinity mask; threads of one core count once."""
    cores = {
        read(root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list") or processor
        for processor in _processors()
    }
    return len(cores)


def _processors():
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)  # macOS has none


def _quota(root):
    """The number of processors whose time the control group and its ancestors may use."""
    quota = math.inf
    for folder, is_first in groups("cpu", root):
        if is_first:
            limits = [read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        else:
            limits = read(folder / "cpu.max").split()
        if len(limits) == 2 and all(limit.isdecimal() for limit in limits):
            quota = min(quota, int(limits[0]) / max(int(limits[1]), 1))
    return quota


def start_of(pid):
    """Returns the start time of a process, in ticks since the machine was booted; ``None`` if it does not exist.

    Args:
        pid: the process number; values that are not numbers belong to no process.
    """
    if type(pid) is not int or pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *fields = file.read().rpartition(")")[2].split()  # proc(5), fields from 3 on; 2 may hold any text
            return None if state in "ZX" else int(fields[18])  # a zombie has ended
    except (OSError, IndexError, ValueError):
        return None


def is_alive(described):
    """Returns ``True`` if a process is alive, and did not get the number of an ended one.

    Args:
        described: dict with ``pid``, and ``start`` from :func:`start_of`; without ``start`` the result is ``False``.
    """
    return described.get("start") is not None and start_of(described.get("pid")) == described["start"]
