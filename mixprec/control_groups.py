"""The control groups of Linux that limit this process, as containers have them: files with limits of one resource."""

import pathlib


def groups(controller, root=pathlib.Path("/")):
    """Yields the folders of the control group of this process and of those above it.

    Args:
        controller: name of the resource, ``"cpu"`` or ``"memory"``.
        root: of the file system, a ``pathlib.Path``.

    Yields:
        ``(folder, is_first)``: a folder, which need not exist, and whether it is of version 1 of control groups.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        folder = root / "sys/fs/cgroup" / (controller if controllers else "")
        # In a container the path may be that of the host, which is not there.
        for group in (pathlib.PurePath(path.lstrip("/")), *pathlib.PurePath(path.lstrip("/")).parents):
            yield folder / group, bool(controllers)


def read(path):
    """Returns the text of a file without white space around it, ``""`` if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
