"""The commands ``parity`` and ``ablation`` of ``scripts/benchmark.py``."""

import dataclasses
import pathlib

from benchmarks import command_arguments, record_files
from benchmarks.study import study_report, study_runs
from benchmarks.study.studies import ABLATIONS, PARITY
from mixprec.app.commands.command_line import path


def add(commands, networks):
    """Adds the commands.

    Args:
        commands: what ``add_subparsers`` has returned.
        networks: names of networks for ``model.arch``.
    """

    def parity(save, **options):
        _run(save, PARITY, "parity", networks, **options)

    def ablation(save, data, **options):
        _run(save, ABLATIONS[data], f"ablation-{data}", networks, **options)

    _add(commands, parity, "parity", "the accuracy of FP16 beside FP32, with negative controls")
    text = "what each ingredient of today's recipes, or an optimizer for large batches, brings to an accuracy"
    command = _add(commands, ablation, "ablation", text)
    command.add_argument("--data", choices=ABLATIONS, default="digits", help="what is learned (default: %(default)s)")


def _add(commands, function, name, text):
    command = record_files.add_command(commands, function, name, text)
    command.add_argument("--config", type=pathlib.Path, metavar="FILE", help="train by this one")
    help = "overrides a key for all runs; may be repeated"
    command.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help=help)
    help = "names with commas; default: all. What they are compared with comes with them"
    command.add_argument("--arms", type=lambda text: text.split(","), metavar="NAMES", help=help)
    positive = command_arguments.positive
    command.add_argument("--seeds", type=positive, default=5, help="runs of each arm (default: %(default)s)")
    help = "runs at the same time, one core each (default: %(default)s)"
    command.add_argument("--jobs", type=positive, default=2, help=help)
    help = "of the runs, which the same command goes on with; default: in results"
    command.add_argument("--out", type=path("a folder"), metavar="DIR", help=help)
    return command


def _run(save, study, name, networks, config, overrides, arms, seeds, jobs, out):
    study = dataclasses.replace(study.only(arms), settings=(*study.settings, *overrides))
    if config is not None:
        study = dataclasses.replace(study, config=config, make=None)
    epochs = study.checked_epochs(networks)
    todo = [(arm, seed) for seed in range(seeds) for arm in study.arms if seed < (arm.most_seeds or seeds)]
    out = pathlib.Path(out or f"results/{name}")
    print(f"{name}: {len(todo)} runs of {epochs} epochs, {len(study.arms)} arms", flush=True)
    save.otherwise = f"the same command goes on from the last snapshots in {out}"
    runs = study_runs.run_all(study, todo, out=out, jobs=jobs, epochs=epochs)
    record = study_report.as_json(study, runs, name=name, config=study.config.name, seeds=seeds, jobs=jobs)
    print(study_report.table(record))
    save(record)
