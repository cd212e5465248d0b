"""The command ``scaling`` of ``scripts/benchmark.py``."""

import functools

from benchmarks import command_arguments, record_files
from benchmarks.scaling import measured_scaling


def add(commands, networks):
    """Adds the command.

    Args:
        commands: what ``add_subparsers`` has returned.
        networks: dict from names to callables that take the number of classes and return a Chainer link.
    """
    text = "data parallel training by ranks on this machine, beside independent processes and ChainerMN's optimizer"
    command = record_files.add_command(commands, functools.partial(_scaling, networks), "scaling", text)
    positive, positives = command_arguments.positive, command_arguments.positives
    command_arguments.add_arch(command, "resnet20", networks)
    command.add_argument("--ranks", type=positives, default=[2], help="numbers of ranks, with commas")
    command.add_argument("--batch", type=positive, default=32, help="images of a rank in a step")
    dtypes = ("float32", "float16", "bfloat16")
    command.add_argument("--dtype", choices=dtypes, default="float32", help="that mixprec computes in")
    command.add_argument("--blocks", type=positive, default=7, help="timed blocks of each row")
    command.add_argument("--seconds", type=command_arguments.amount, default=2.0, help="of a block, about")


def _scaling(networks, save, arch, ranks, batch, dtype, blocks, seconds):
    wrong = [number for number in ranks if number == 1 or batch % number]
    if wrong:
        message = f"--ranks {wrong[0]}: expected numbers of at least 2 that divide --batch {batch}"
        raise command_arguments.ArgumentsError(message)
    settings = {"arch": arch, "batch": batch, "dtype": dtype, "blocks": blocks, "seconds": seconds}
    found = measured_scaling.measure(networks[arch], numbers=ranks, **settings)
    print(found.table(), flush=True)
    save({"settings": {**settings, "ranks": ranks}, **found.as_json()})
