"""How many threads compute."""

import os


def number_of_threads():
    """Returns ``OMP_NUM_THREADS``, or else the number of processors that the process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > 0:
        return min(int(wanted), 256)
    return len(os.sched_getaffinity(0))
