"""Checks that a process of this machine is alive, even if its PID has been reused."""


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
