"""Measures mixprec beside plain Chainer in one run.

python scripts/benchmark.py step [--arch resnet8] [--batch 64] [--size 32] [--steps 5] [--json FILE]
python scripts/benchmark.py update [--arch resnet50] [--repeats 7] [--json FILE]
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # models/ lies beside scripts/

from mixprec import files
from mixprec.benchmark import step, update, update_gpu
from models import MODELS


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {number}, expected at least 1")
    return number


def _step(arch, **settings):
    rows = step.measure(MODELS[arch], **settings)
    print(f"{arch}, batch {settings['batch']}, {settings['size']}x{settings['size']} pixels, NumPy")
    print(step.table(rows))
    return step.as_json(rows, arch=arch, **settings)


def _update(arch, repeats):
    rows = update.measure(MODELS[arch], repeats=repeats)
    print(f"optimizer.update() of MomentumSGD, parameters of {arch}, NumPy")
    print(update.table(rows))
    gpu = update_gpu.measure(MODELS[arch], repeats=repeats)
    print(update_gpu.table(*gpu))
    return update.as_json(rows, update_gpu.as_json(*gpu), arch=arch, repeats=repeats)


def _add_command(commands, function, name, arch, text):
    command = commands.add_parser(name, help=text)
    command.set_defaults(function=function)
    command.add_argument("--arch", choices=sorted(MODELS), default=arch, metavar="NAME")
    command.add_argument("--json", metavar="FILE", help="write the numbers there, too")
    return command


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    text = "one training step on the CPU: float32, float16, plain mixed16"
    command = _add_command(commands, _step, "step", "resnet8", text)
    command.add_argument("--batch", type=_positive, default=64, help="images in a batch")
    command.add_argument("--size", type=_positive, default=32, help="height and width of an image in pixels")
    command.add_argument("--steps", type=_positive, default=5, help="timed steps")
    text = "the optimizer's step alone: plain Chainer, mixprec, torch"
    command = _add_command(commands, _update, "update", "resnet50", text)
    command.add_argument("--repeats", type=_positive, default=7, help="timed turns")
    settings = vars(parser.parse_args())

    del settings["command"]
    function, file = settings.pop("function"), settings.pop("json")
    record = function(**settings)
    if file:
        files.write_text(file, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
