"""The surroundings of a run: time, host, command and commit, for ``environment.txt`` in its results folder."""

import datetime
import os
import platform
import shlex
import subprocess
import sys

from mixprec.app.parts import environment
from mixprec.base import working_folder
from mixprec.base.messages import printable


def report(ranks=None):
    """Returns command, time, machine and commit, followed by the report of ``mixprec info``, as text.

    Args:
        ranks: text that names the processes that train together, if there are several.
    """
    rows = {
        "command": shlex.join([sys.executable, *sys.argv]),
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": f"{platform.node()}, {platform.platform()}",
        "CPU": f"{environment.cpu()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "folder": _folder(),
    }
    if ranks is not None:
        rows["ranks"] = ranks
    return "".join(f"{name:9}{printable(value)}\n" for name, value in rows.items()) + f"\n{environment.report()}\n"


def _folder():
    folder = working_folder.path()
    return "gone" if folder is None else f"{folder}, {_commit(folder)}"


def _commit(folder):
    describe = ["git", "-C", folder, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        found = subprocess.run(describe, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout
        return "in no git checkout"
    return f"at git commit {found}"
