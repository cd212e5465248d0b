"""How many threads compute, by default."""

import math
import os
import pathlib

from mixprec.control_groups import groups, read


def number_of_threads(root="/"):
    """Returns ``OMP_NUM_THREADS``, or else as many as there are cores for this process.

    These are the cores of the processors that it may run on, and no more than the processor time that its control group
    (a container's) may take.

    Args:
        root: the folder with ``proc`` and ``sys``.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    root = pathlib.Path(root)
    return max(1, int(min(_cores(root), _quota(root))))


def _cores(root):
    """The processors of the affinity mask; those that are threads of one core count once."""
    cores = {
        read(root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list") or processor
        for processor in _processors()
    }
    return len(cores)


def _processors():
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)  # macOS has none


def _quota(root):
    """How many processors' time the control group and those above it may take."""
    quota = math.inf
    for folder, is_first in groups("cpu", root):
        if is_first:
            limits = [read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        else:
            limits = read(folder / "cpu.max").split()
        if len(limits) == 2 and all(limit.isdecimal() for limit in limits):
            quota = min(quota, int(limits[0]) / max(int(limits[1]), 1))
    return quota
