"""The command ``ablation`` of ``scripts/benchmark.py``."""

import os

from benchmarks import command_arguments, record_files
from benchmarks.ablation import ablation_study
from benchmarks.ablation.ablation_arms import BASELINE, DATA
from benchmarks.command_arguments import ArgumentsError
from mixprec.command_line import path


def add(commands, networks):
    """Adds the command.

    Args:
        commands: what ``add_subparsers`` has returned.
        networks: names of networks for ``model.arch``.
    """

    def run(save, **arguments):
        _ablation(save, networks, **arguments)

    text = "what each ingredient of today's recipes brings to an accuracy at equal epochs, on small data; on the CPU"
    command = record_files.add_command(commands, run, "ablation", text)
    positive = command_arguments.positive
    command.add_argument("--data", choices=DATA, default="digits", help="what is learned (default: %(default)s)")
    help = "names with commas; default: all of the data"
    command.add_argument("--arms", type=lambda text: text.split(","), metavar="NAMES", help=help)
    command.add_argument("--seeds", type=positive, default=5, help="runs of each arm (default: %(default)s)")
    epochs = ", ".join(f"{name} {data.epochs}" for name, data in DATA.items())
    command.add_argument("--epochs", type=positive, help=f"of a run; default: {epochs}")
    help = "runs at the same time, one core each (default: %(default)s)"
    command.add_argument("--jobs", type=positive, default=2, help=help)
    help = "of the runs, which the same command goes on with (default: results/ablation-DATA)"
    command.add_argument("--out", type=path("a folder"), metavar="DIR", help=help)


def _ablation(save, networks, data, arms, seeds, epochs, jobs, out):
    name, data = data, DATA[data]
    chosen = _chosen(data.arms, arms)
    epochs, out = epochs or data.epochs, out or os.path.join("results", f"ablation-{name}")
    ablation_study.check(data, chosen, networks, epochs=epochs)
    runs = seeds * (len(chosen) + 1)
    print(f"{name}: {runs} runs; epochs: {epochs}, seeds: {seeds}, arms beside the baseline: {len(chosen)}", flush=True)
    save.otherwise = f"the same command goes on from the last snapshots in {out}"
    runs = ablation_study.measure(data, chosen, seeds=seeds, epochs=epochs, jobs=jobs, out=out)
    settings = {"data": name, "config": data.config.name, "overrides": list(data.settings)}
    record = ablation_study.as_json(runs, chosen, **settings, seeds=seeds, epochs=epochs, jobs=jobs)
    print(ablation_study.table(record))
    save(record)


def _chosen(known, names):
    """Returns the arms of some names, all for ``None``, in the order in which they are known."""
    names = known if names is None else set(names) - {BASELINE.name}
    for name in sorted(set(names) - set(known)):
        raise ArgumentsError(f"--arms {name}: no such arm; allowed: {', '.join(known)}")
    return [arm for name, arm in known.items() if name in names]
