"""The commands of ``scripts/benchmark.py`` about whole training steps: bars, page, profile."""

import datetime
import functools
import os
import pathlib
import re
import sys

from tqdm import tqdm

from benchmarks import machine, profile, rates, record_files
from benchmarks.bars import bars_run, chart, page, result_tables
from benchmarks.bars.record import gpu_name, trained
from benchmarks.bars.sequences import SEQUENCES
from benchmarks.command_arguments import ArgumentsError, add_arch, amount, positive, positives
from mixprec.app.parts import gpus
from mixprec.app.run import synthetic_run

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "benchmarks" / "results"
_SIZE = "height and width of an image in pixels; default: 224, on a CPU 64"


def add(commands, networks):
    """Adds the commands.

    Args:
        commands: what ``add_subparsers`` has returned.
        networks: dict from names to callables that take the number of classes and return a Chainer link.
    """
    _add_bars(commands, networks)
    _add_page(commands)
    _add_profile(commands, networks)


def _add_bars(commands, networks):
    text = "images/s (or words/s) of training on synthetic data, a row for each way to train; in small on a CPU"
    json = "the record, rewritten after each round of blocks; the chart is drawn beside it; default: "
    json += "benchmarks/results/DATE-TIME-bars-MACHINE.json of the checkout"
    command = record_files.add_command(commands, functools.partial(_bars, networks), "bars", text, json)
    help = "train on images, or on sequences: a language model, an encoder and a decoder, or a bidirectional network"
    command.add_argument("--task", choices=["images", *SEQUENCES], default="images", help=help)
    add_arch(command, None, networks)
    help = "images or sequences in a batch, with commas; default: 32,64,128,256,512, on a CPU 8, or as the task"
    command.add_argument("--batch", type=positives, help=help)
    command.add_argument(
        "--size", type=positive, help="height and width of an image in pixels; default: 224, on a CPU 64"
    )
    command.add_argument("--blocks", type=positive, default=5, help="timed blocks of each row")
    help = "timed steps in a block, more if they take less than 1 s, fewer if more than 5; default: 30, on a CPU 10"
    command.add_argument("--block-steps", type=positive, help=help)
    help = "seconds after which a row is given up if its block does not answer"
    command.add_argument("--limit", type=amount, default=600.0, help=help)
    help = "the same until the row is warm: kernels, plans and engines of cuDNN; default: --limit"
    command.add_argument("--prepare-limit", type=amount, help=help)
    help = "begin nothing new after this many minutes, except a first block; omitted rows say so"
    command.add_argument("--minutes", type=amount, help=help)
    command.add_argument("--peer", choices=bars_run.PEERS, help="measure the same network by it, too")
    help = "only rows with such names, as in a shell: '*FP32*'; may be repeated"
    command.add_argument("--rows", action="append", metavar="PATTERN", help=help)


def _bars(networks, save, task, **chosen):
    wrong = [key for key in ("arch", "size") if task in SEQUENCES and chosen[key] is not None]
    if wrong:
        raise ArgumentsError(f"--{wrong[0]}: only for images, not with --task {task}")
    specifier, device = gpus.resolve_device("auto")
    default = bars_run.defaults(specifier, task)
    small = specifier == "@numpy" and task == "images" and any(chosen[key] is None for key in default)
    settings = bars_run.Settings(**{key: default.get(key) if value is None else value for key, value in chosen.items()})
    turns = bars_run.turns_of(settings, specifier)
    if save.path is None:
        save.path = _file_of(specifier, device)
    print(f"{device}{', therefore in small' * small}")
    what = f"{trained(vars(settings))}, training on synthetic data"
    print(f"{what}, {settings.blocks} blocks of {settings.block_steps} steps")
    print(f"record: {save.path}", flush=True)
    with tqdm(total=turns, unit="turn", leave=False, disable=None) as bar:

        def progress(name):
            bar.set_postfix_str(name)
            bar.update()

        problem = None
        for record, batch in bars_run.run(networks, settings, specifier, device, progress=progress):
            problem = _unsaved(save, record, problem)
            if batch is not None:
                bar.clear()
                print(result_tables.console(record, batch), flush=True)
    if problem is not None:
        raise problem
    picture = save.path.with_suffix(".png")
    with record_files.writing(picture):
        chart.save(picture, record)


def _unsaved(save, record, before):
    """Writes a record. If that is not possible, it says so once and returns the error: the tables are worth having."""
    try:
        save(record)
    except record_files.WriteError as error:
        if before is None:
            print(f"benchmark: {error}; measuring goes on", file=sys.stderr, flush=True)
        return error
    return None


def _file_of(specifier, device):
    """Returns where the record of a run goes that has no ``--json``: hours are not to be lost."""
    name = "cpu" if specifier == "@numpy" else re.sub(r"[^a-z0-9]+", "-", gpu_name(device).lower()).strip("-")
    now = datetime.datetime.now(datetime.timezone.utc)
    try:
        return record_files.json_file(_RESULTS / f"{now:%Y-%m-%d-%H%M%S}-bars-{name}.json")
    except ArgumentsError as error:
        raise ArgumentsError(f"without --json: {error}") from None


def _add_page(commands):
    text = "docs/results.md and its charts from the records of bars in benchmarks/results"
    command = commands.add_parser("page", help=text)
    command.set_defaults(function=_page, json=None)
    help = "where the records are; default: benchmarks/results of the checkout"
    command.add_argument("--results", type=pathlib.Path, default=_RESULTS, metavar="FOLDER", help=help)
    default = _ROOT / "docs" / "results.md"
    help = "the page; default: docs/results.md of the checkout"
    command.add_argument("--out", type=record_files.markdown_file, default=default, metavar="FILE", help=help)


def _page(save, results, out):
    if not os.path.isdir(results):
        raise ArgumentsError(f"--results: {results} is no folder")
    with record_files.writing(out):
        page.write(results, out)


def _add_profile(commands, networks):
    text = "where the time of a training step goes: each layer and kind of kernel, beside what it needs at least"
    command = record_files.add_command(commands, functools.partial(_profile, networks), "profile", text)
    command.add_argument(
        "--config", default="nhwc_fused_batched.yaml", metavar="FILE", help="of configs/resnet50, or a path"
    )
    add_arch(command, None, networks)
    command.add_argument("--batch", type=positive, help="images in a batch; default: 256, on a CPU 8")
    command.add_argument(
        "--size", type=positive, help="height and width of an image in pixels; default: 224, on a CPU 64"
    )
    help = "a key of the config that is to be another one, such as cudnn.autotune=off; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help)
    command.add_argument("--steps", type=positive, default=5, help="steps that are watched")
    command.add_argument("--top", type=positive, default=20, help="calls with most to gain that are listed")


def _profile(networks, save, config, arch, batch, size, set, steps, top):
    specifier, device = gpus.resolve_device("auto")
    default = bars_run.defaults(specifier)
    arch, size = arch or default["arch"], size or default["size"]
    batch = batch or (8 if specifier == "@numpy" else 256)
    loaded = synthetic_run.load(config, arch=arch, batch=batch, size=size, overrides=set)
    what = ", ".join([config, *set])
    print(f"{device}\n{arch} by {what}, batch {batch}, {size}x{size} pixels")
    found = profile.measure(loaded, networks[arch], specifier, rates.measure(specifier), steps=steps)
    print(profile.table(found, top))
    settings = {"config": config, "set": set, "arch": arch, "batch": batch, "size": size, "steps": steps}
    save({"settings": settings, **machine.record(), "device": device, **profile.as_json(found)})
