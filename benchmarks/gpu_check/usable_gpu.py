"""Looks for a GPU that can be used, in a process of its own: a broken driver may hang or end it.

python -m benchmarks.gpu_check.usable_gpu
"""

import json

from mixprec import environment


def main():
    """Prints ``{"device": specifier or null, "reason": one line}``. There is no file: the disk may be full."""
    specifier, reason = environment.resolve_device("auto")
    found = specifier != "@numpy"
    print(json.dumps({"device": specifier if found else None, "reason": reason.removeprefix("CPU: ")}))


if __name__ == "__main__":
    main()
