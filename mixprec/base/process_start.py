"""Whether a process of this machine is still there, also where its number has become another one's."""


def start_of(pid):
    """Returns when a process of this machine was started, in ticks since it was booted; ``None`` if there is none.

    Args:
        pid: its number; what is no number is none's.
    """
    if type(pid) is not int or pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *fields = file.read().rpartition(")")[2].split()  # from field 3 of proc(5) on; 2 may hold anything
            return None if state in "ZX" else int(fields[18])  # a zombie has ended
    except (OSError, IndexError, ValueError):
        return None


def is_alive(described):
    """Returns ``True`` if a process is there, and is not another one with the number of one that has ended.

    Args:
        described: dict with ``pid``, and ``start`` as of :func:`start_of`; without ``start`` it is taken as ended.
    """
    return described.get("start") is not None and start_of(described.get("pid")) == described["start"]
