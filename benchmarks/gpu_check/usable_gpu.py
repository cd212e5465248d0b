"""Looks for a GPU that can be used, in a process of its own: a broken driver may hang or end it.

python -m benchmarks.gpu_check.usable_gpu

Prints the GPU, or why there is none; the exit status is then that of ``benchmarks.gpu_check.stages.NO_GPU``.
"""

import sys

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()

from benchmarks.gpu_check.stages import NO_GPU
from mixprec.app.parts import gpus


def main():
    """Asks for it; returns the exit status."""
    specifier, reason = gpus.resolve_device("auto")
    print(reason.removeprefix("CPU: "))
    return NO_GPU if specifier == "@numpy" else 0


if __name__ == "__main__":
    sys.exit(command_process.run(main))
