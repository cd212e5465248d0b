"""Everything about a machine that its results may depend on, as text: processor, memory, disk, driver, packages.

python -m benchmarks.gpu_check.surroundings FILE
"""

import os
import shutil
import subprocess
import sys
from importlib import metadata

from benchmarks import machine

NAME = "environment.txt"
_COMMANDS = (
    (sys.executable, "-m", "mixprec"),
    ("nvidia-smi",),
    ("nvidia-smi", "-q"),
    ("nvidia-smi", "topo", "-m"),
)
_LIMIT = 40  # seconds for each; a broken driver may never answer


def main(path):
    """Writes the file section by section, so that what is known stays if the driver hangs.

    Returns:
        int: exit status: 0, or 1 if a command failed; one that is not installed has not.
    """
    failed = []
    with open(path, "w", encoding="utf-8") as file:
        _write(file, "machine", _machine(os.path.dirname(path)))
        for command in _COMMANDS:
            text, good = _output(command)
            _write(file, " ".join(("python", *command[1:]) if command[0] == sys.executable else command), text)
            if not good:
                failed.append(f"{' '.join(command)}: {text.splitlines()[-1] if text else 'failed without a word'}")
        _write(file, "distributions", _distributions())
    print("\n".join(failed) if failed else f"all is in {path}")
    return int(bool(failed))


def _write(file, title, text):
    file.write(f"== {title}\n{text}\n\n")
    file.flush()


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


def _output(command):
    """What a command prints, and whether it ended well or is not installed."""
    if shutil.which(command[0]) is None:
        return "not installed", True
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_LIMIT, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_LIMIT} s", False
    return ended.stdout.rstrip(), not ended.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
