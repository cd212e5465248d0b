"""The commands ``memory`` and ``memory-picture`` of ``scripts/benchmark.py``."""

import os
import tempfile

from tqdm import tqdm

from benchmarks import command_arguments, record_files
from benchmarks.activations import largest, memory_table, step_picture, step_recording, ways
from mixprec.activation_memory.budget import check_budget
from mixprec.command_line import one_line
from mixprec.messages import OneLineError

_DTYPES = ("float16", "float32", "bfloat16")


def add(commands):
    """Adds the commands.

    Args:
        commands: what ``add_subparsers`` has returned.
    """
    text = "the largest image of a U-Net whose training step fits into some memory: kept, computed again, offloaded"
    command = record_files.add_command(commands, _memory, "memory", text)
    command.add_argument("--budget", type=_budget, default="2 GB", help="memory of the process, such as 500 MiB")
    command.add_argument("--steps", type=command_arguments.positive, default=2, help="timed steps of a trial")
    _add_network(command)
    text = "a picture of the memory of a step over time, by plans for a step that is recorded here"
    command = commands.add_parser("memory-picture", help=text)
    command.set_defaults(function=_picture, json=None)
    command.add_argument("out", type=record_files.picture_file, metavar="FILE", help="the picture, .svg or .png")
    help = "memory that the offloaded step may take, such as 500 MiB; default: a quarter of what can be saved is not"
    command.add_argument("--budget", type=_budget, help=help)
    command.add_argument("--size", type=_size, default=1536, help="height and width of an image in pixels")
    _add_network(command)


def _add_network(command):
    command.add_argument("--width", type=command_arguments.positive, default=8, help="of the U-Net; 64 in the paper")
    command.add_argument("--batch", type=command_arguments.positive, default=1, help="images in a batch")
    command.add_argument("--dtype", choices=_DTYPES, default="float16", help="that mixprec computes in")
    help = "for the file with what is offloaded, on a disk; default: that for temporary files"
    command.add_argument("--folder", type=_folder, default=tempfile.gettempdir(), metavar="FOLDER", help=help)


def _budget(text):
    try:
        found = check_budget(text)
    except OneLineError as error:
        raise command_arguments.ArgumentsError(str(error)) from None
    if found < 1:
        raise command_arguments.ArgumentsError(f"found {text!r}, expected a size such as '2 GB', not a share")
    return found


def _size(text):
    size = command_arguments.positive(text)
    if size % ways.MULTIPLE:
        raise command_arguments.ArgumentsError(f"found {text!r}, expected a multiple of {ways.MULTIPLE}")
    return size


def _folder(text):
    if not os.path.isdir(text):
        raise command_arguments.ArgumentsError(f"{text} is no folder")
    return text


def _memory(save, budget, width, batch, dtype, folder, steps):
    setting = ways.Setting(budget, width, batch, dtype, folder, steps)
    print(f"U-Net of width {width} in {dtype}, batch {batch}: the largest image within {budget / 1e6:,.0f} MB")
    print(f"offloaded to a file in {one_line(folder)}", flush=True)
    with tqdm(unit="trial", leave=False, disable=None) as bar:

        def progress(way, size):
            bar.set_postfix_str(f"{way}, {size}x{size} pixels")
            bar.update()

        rows = largest.measure(setting, progress=progress)
    settings = {"budget": budget, "width": width, "batch": batch, "dtype": dtype, "steps": steps}
    record = memory_table.as_json(rows, **settings)
    print(memory_table.table(record))
    save(record)


def _picture(save, out, budget, size, width, batch, dtype, folder):
    setting = ways.Setting(budget, width, batch, dtype, folder, steps=0)
    curves, budget = step_recording.curves(setting, size)
    title = f"A training step of a U-Net of width {width} in {dtype}, batch {batch}, {size}x{size} pixels"
    with record_files.writing(out):
        step_picture.save(out, curves, budget, title)
    for curve in curves:
        print(f"{curve.name:20}{curve.peak / 1e6:10,.1f} MB{1e3 * curve.seconds:10,.1f} ms")
