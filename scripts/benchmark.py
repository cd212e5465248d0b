"""Measures mixprec beside plain Chainer in one run.

python scripts/benchmark.py step [--arch resnet8] [--batch 64] [--size 32] [--steps 5] [--json FILE]
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # models/ lies beside scripts/

from mixprec import files
from mixprec.benchmark import step
from models import MODELS


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {number}, expected at least 1")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("step", help="one training step on the CPU: float32, float16, plain mixed16")
    command.add_argument("--arch", choices=sorted(MODELS), default="resnet8", metavar="NAME")
    command.add_argument("--batch", type=_positive, default=64, help="images in a batch")
    command.add_argument("--size", type=_positive, default=32, help="height and width of an image in pixels")
    command.add_argument("--steps", type=_positive, default=5, help="timed steps")
    command.add_argument("--json", metavar="FILE", help="write the numbers there, too")
    arguments = parser.parse_args()

    settings = {name: getattr(arguments, name) for name in ("batch", "size", "steps")}
    rows = step.measure(MODELS[arguments.arch], **settings)
    print(f"{arguments.arch}, batch {arguments.batch}, {arguments.size}x{arguments.size} pixels, NumPy")
    print(step.table(rows))
    if arguments.json:
        record = step.as_json(rows, arch=arguments.arch, **settings)
        files.write_text(arguments.json, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
