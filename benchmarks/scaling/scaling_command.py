"""The command ``scaling`` of ``scripts/benchmark.py``."""

import functools

from benchmarks import command_arguments, record_files
from benchmarks.scaling import measured_scaling, prediction, scaling_plot


def add(commands, networks):
    """Adds the command.

    Args:
        commands: what ``add_subparsers`` has returned.
        networks: dict from names to callables that take the number of classes and return a Chainer link.
    """
    text = "data parallel training: a model for 8 to 4,096 GPUs beside published points, and ranks measured here"
    json = "write the numbers there, too, and a plot beside it"
    command = record_files.add_command(commands, functools.partial(_scaling, networks), "scaling", text, json)
    positive, positives = command_arguments.positive, command_arguments.positives
    parts = command.add_mutually_exclusive_group()
    parts.add_argument("--no-model", dest="model", action="store_false", help="only what is measured here")
    parts.add_argument("--no-measure", dest="measures", action="store_false", help="only the model, for ResNet-50")
    command_arguments.add_arch(command, "resnet20", networks)
    command.add_argument("--ranks", type=positives, default=[2], help="numbers of ranks to measure, with commas")
    command.add_argument("--batch", type=positive, default=32, help="images of a rank in a measured step")
    help = "that mixprec computes in when it is measured"
    command.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32", help=help)
    command.add_argument("--blocks", type=positive, default=7, help="timed blocks of each row")
    command.add_argument("--seconds", type=command_arguments.amount, default=2.0, help="of a block, about")


def _scaling(networks, save, model, measures, arch, ranks, batch, dtype, blocks, seconds):
    wrong = [number for number in ranks if number == 1 or batch % number]
    if wrong:
        raise command_arguments.ArgumentsError(
            f"--ranks {wrong[0]}: expected numbers of at least 2 that divide --batch {batch}"
        )
    settings = {"arch": arch, "ranks": ranks, "batch": batch, "dtype": dtype, "blocks": blocks, "seconds": seconds}
    record = {"settings": settings}
    if model:
        found = prediction.predict(networks["resnet50"])
        print(found.table(), flush=True)
        record["model"] = found.as_json()
    if measures:
        found = measured_scaling.measure(
            networks[arch], arch=arch, batch=batch, numbers=ranks, dtype=dtype, blocks=blocks, seconds=seconds
        )
        print("\n" * model + found.table(), flush=True)
        record["measured"] = found.as_json()
    save(record)
    if save.path is not None:
        picture = save.path.with_suffix(".png")
        with record_files.writing(picture):
            scaling_plot.save(picture, record)
