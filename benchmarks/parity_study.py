"""Compares the ends of training in FP16 and in FP32: paired runs of the training script, and negative controls."""

import dataclasses
import statistics

from benchmarks import machine
from benchmarks.parity_arms import ARMS, CONTROLS, FP16, FP32
from benchmarks.parity_runs import ParityError, run_all
from benchmarks.parity_statistics import LEVEL, MARGIN, compare
from mixprec import config as configs


def measure(config, networks, *, settings=(), seeds=5, control_seeds=5, jobs=2, out):
    """Trains all arms, as far as that has not been done.

    FP16 and FP32 come first, a seed after the other, then the controls.

    Args:
        config: path of the YAML file that all arms are trained with.
        networks: as for :func:`mixprec.training.command.main`.
        settings: overrides of it for all arms, ``KEY=VALUE``.
        seeds: FP16 and FP32 are trained with the seeds 0 to ``seeds - 1``.
        control_seeds: likewise for the controls; at most ``seeds``.
        jobs: number of runs at the same time.
        out: folder of the runs.

    Returns:
        list of :class:`~benchmarks.parity_runs.Run`

    Raises:
        mixprec.config.ConfigError: the config is wrong.
        ParityError: a run failed, or ``out`` holds another study.
    """
    loaded = configs.load(config, list(settings), choices={"model.arch": sorted(networks)})
    if control_seeds > seeds:
        raise ParityError(f"--control-seeds {control_seeds}: at most --seeds, {seeds}")
    pair = [(arm, seed) for seed in range(seeds) for arm in (FP32, FP16)]
    controls = [(arm, seed) for seed in range(control_seeds) for arm in ARMS if arm not in (FP32, FP16)]
    return run_all(pair + controls, config=config, settings=settings, out=out, jobs=jobs, epochs=loaded.training.epochs)


def as_json(runs, **settings):
    """Returns a study as a dict for JSON: settings, machine, runs, and what follows from them."""
    accuracies = {arm: _accuracies(runs, arm) for arm in ARMS}
    return {
        "settings": {**settings, "margin": MARGIN, "level": LEVEL},
        **machine.record(),
        "runs": [dataclasses.asdict(run) for run in runs],
        "arms": [_arm(arm, list(accuracies[arm].values())) for arm in ARMS if accuracies[arm]],
        "comparisons": [
            _comparison(arm, reference, accuracies)
            for arm, reference in {FP16: FP32, **CONTROLS}.items()
            if accuracies[arm]
        ],
    }


def table(record):
    """Returns what a study found as two tables in Markdown.

    Args:
        record: from :func:`as_json`, also after it was read from a file.
    """
    lines = ["| Arm | Seeds | Accuracy, % |", "|---|---|---|"]
    for arm in record["arms"]:
        spread = "" if arm["sd"] is None else f" +- {arm['sd']:.2f}"
        lines.append(f"| {arm['title']} | {arm['seeds']} | {arm['mean']:.2f}{spread} |")
    level = f"{record['settings']['level']:.0%}"
    lines += ["", f"| Difference, points | Each seed | Mean | {level} interval | |", "|---|---|---|---|---|"]
    for each in record["comparisons"]:
        differences = ", ".join(f"{difference:+.2f}" for difference in each["differences"])
        interval = "" if each["low"] is None else f"{each['low']:+.2f} to {each['high']:+.2f}"
        lines.append(
            f"| {each['title']} | {differences} | {each['mean']:+.2f} | {interval} | {each['verdict']} |",
        )
    return "\n".join(lines)


def _accuracies(runs, arm):
    return {run.seed: run.accuracy for run in runs if run.arm == arm.name}


def _arm(arm, accuracies):
    return {
        "name": arm.name,
        "title": arm.title,
        "settings": list(arm.settings),
        "masters": arm.masters,
        "seeds": len(accuracies),
        "mean": statistics.fmean(accuracies),
        "sd": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
    }


def _comparison(arm, reference, accuracies):
    seeds = sorted(accuracies[arm])
    paired = compare([accuracies[arm][seed] for seed in seeds], [accuracies[reference][seed] for seed in seeds])
    title = f"{arm.title}, against {reference.title}"
    return {"arm": arm.name, "against": reference.name, "title": title, "seeds": seeds, **dataclasses.asdict(paired)}
