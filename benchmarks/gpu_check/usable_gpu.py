"""Looks for a GPU that can be used, in a process of its own: a broken driver may hang or end it.

python -m benchmarks.gpu_check.usable_gpu

Prints the GPU, or why there is none; the exit status is then that of ``benchmarks.gpu_check.stages.NO_GPU``.
"""

import sys

from benchmarks.gpu_check.stages import NO_GPU
from mixprec import environment

if __name__ == "__main__":
    specifier, reason = environment.resolve_device("auto")
    print(reason.removeprefix("CPU: "))
    sys.exit(NO_GPU if specifier == "@numpy" else 0)
