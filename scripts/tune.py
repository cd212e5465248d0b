"""Searches for the fastest engine of cuDNN for every operation of a training step, with more time than training takes.

python scripts/tune.py [--config nhwc_fused_batched.yaml] [--arch resnet50] [--batch 256] [--size 224]
    [--seconds-per-operation 40] [--set SECTION.KEY=VALUE ...]

cuDNN compiles the engines of batch normalizations when it builds them, a second each, and a training run builds none.
This tries ten for each operation, beside own kernels: choices are kept in ~/.cache/mixprec as they are made, and
training with autotune `measure` takes them from there. A line for each says what was chosen, and the gain over what is
taken without measuring. Interrupted, it goes on where it was. `--config` is a file of configs/resnet50 or a path; give
what will be trained, as another batch or size makes other operations.

Exit status: 0 if all is measured, 1 if an engine has broken the device (run it again: that one is left out), 2 if it
could not be tried.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process
from mixprec.base import cudnn_library

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from benchmarks import configured, engine_search
from benchmarks.command_arguments import ArgumentsError, add_arch, amount, positive
from mixprec.app.commands.command_line import Parser, first_line, one_line
from mixprec.app.config import ConfigError
from mixprec.app.parts import environment
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.errors import BrokenDevice
from models import MODELS


def main(arguments=None):
    """Prints a line for each choice and a last one about all, and returns the exit status."""
    parser = Parser(description=first_line(__doc__))
    help = "a file in configs/resnet50, or a path"
    parser.add_argument("--config", default="nhwc_fused_batched.yaml", metavar="FILE", help=help)
    add_arch(parser, "resnet50", MODELS)
    parser.add_argument("--batch", type=positive, default=256, help="images in a batch")
    parser.add_argument("--size", type=positive, default=224, help="height and width of an image in pixels")
    help = "seconds of compiling, after which no other engine of an operation is tried"
    parser.add_argument("--seconds-per-operation", type=amount, default=40.0, metavar="SECONDS", help=help)
    help = "another value in the config; may be repeated"
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="SECTION.KEY=VALUE", help=help)
    given = parser.parse_args(arguments)
    try:
        config = configured.load(
            given.config, arch=given.arch, batch=given.batch, size=given.size, overrides=given.overrides
        )
        specifier, device = environment.resolve_device("gpu")
        cudnn_library.load()
        settings.Settings(compile_seconds=given.seconds_per_operation)
    except (ArgumentsError, ConfigError, ValueError, cudnn_library.CudnnMissing) as error:
        print(f"tune: {one_line(error)}", file=sys.stderr)
        return 2
    print(f"{given.arch}, batch {given.batch}, {given.size} x {given.size}, on {device}", flush=True)
    try:
        choices = engine_search.tune(
            config, MODELS[given.arch], specifier, given.seconds_per_operation, lambda line: print(line, flush=True)
        )
    except BrokenDevice as error:
        print(f"tune: {one_line(error)}", file=sys.stderr)
        return 1
    print(_summary(choices))
    return 0


def _summary(choices):
    if not choices:
        return "nothing to do: everything was measured before, with as much time"
    taken, first = (sum(getattr(choice, name) for choice in choices) for name in ("milliseconds", "first"))
    return (
        f"{len(choices)} choices, kept in {settings.current().cache}: {taken:.3f} ms in all, each once; "
        f"unmeasured {first:.3f} ms"
    )


if __name__ == "__main__":
    sys.exit(command_process.run(main))
