"""Everything about a machine that its results may depend on, as text: processor, memory, disk, driver, packages.

python -m benchmarks.gpu_check.machine_report FOLDER
"""

import os
import shutil
import subprocess
import sys
from importlib import metadata

from benchmarks import machine

# With seconds, after which a driver is not waited for, and whether it is a failure if there is no answer.
_COMMANDS = (
    (("nvidia-smi",), 4, True),
    ((sys.executable, "-m", "mixprec"), 10, False),
    (("nvidia-smi", "topo", "-m"), 2, False),
)


def main(folder):
    """Prints section by section, so that what is known stays if the driver hangs.

    Args:
        folder: on whose disk there has to be room.

    Returns:
        int: exit status: 0, or 1 if a command failed; one that is not installed has not.
    """
    failed = []
    _print("machine", _machine(folder))
    _print("distributions", _distributions())
    for command, limit, matters in _COMMANDS:
        text, good = _output(command, limit)
        _print(" ".join(("python", *command[1:]) if command[0] == sys.executable else command), text)
        if matters and not good:
            failed.append(f"{' '.join(command)}: {text.splitlines()[-1] if text else 'failed without a word'}")
    print("\n".join(failed) if failed else "all commands have answered, or are not installed")
    return int(bool(failed))


def _print(title, text):
    print(f"== {title}\n{text}\n", flush=True)


def _machine(folder):
    rows = {
        **machine.record(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "free disk": f"{shutil.disk_usage(folder).free / 2**30:.1f} GiB at {folder}",
    }
    return "\n".join(f"{name:10}{value}" for name, value in rows.items())


def _distributions():
    installed = {f"{found.metadata['Name']}=={found.version}" for found in metadata.distributions()}
    return "\n".join(sorted(installed, key=str.casefold))


def _output(command, limit):
    """What a command prints, and whether it ended well or is not installed."""
    if shutil.which(command[0]) is None:
        return "not installed", True
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {limit} s", False
    return ended.stdout.rstrip(), not ended.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
