"""Whether there is a GPU that can be used, asked in a process of its own: a broken driver may hang or end it.

python -m benchmarks.gpu_check.device FILE
"""

import json
import sys

from mixprec import environment, files

NAME = "device.json"


def main(path):
    """Writes ``{"device": specifier or null, "reason": one line}`` to a file and prints the line."""
    specifier, reason = environment.resolve_device("auto")
    found = specifier != "@numpy"
    reason = reason.removeprefix("CPU: ")
    files.write_text(path, json.dumps({"device": specifier if found else None, "reason": reason}) + "\n")
    print(reason if found else f"no device: {reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
