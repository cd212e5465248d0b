"""Runs of the arms, seed by seed, and what follows from the differences to the baseline."""

import dataclasses
import os
import statistics

from benchmarks import machine
from benchmarks.ablation.ablation_arms import BASELINE
from benchmarks.command_arguments import ArgumentsError
from benchmarks.parity_runs import run_all
from benchmarks.parity_statistics import LEVEL, compare
from mixprec import config as configs
from mixprec.config import ConfigError


def check(data, arms, networks, *, epochs):
    """Finds what would end the study before its first run, or after some.

    Args:
        data: :class:`~benchmarks.ablation.ablation_arms.Data`.
        arms: list of :class:`~benchmarks.parity_arms.Arm`, without the baseline.
        networks: names of networks for ``model.arch``.
        epochs: of each run.

    Raises:
        ArgumentsError: an arm is no config, or there are no images.
        mixprec.config.ConfigError: the baseline is no config.
    """
    choices = {"model.arch": sorted(networks)}
    baseline = configs.load(data.config, _settings(data, epochs), choices=choices)
    for arm in arms:
        try:
            configs.load(data.config, [*_settings(data, epochs), *arm.settings], choices=choices)
        except ConfigError as error:
            raise ArgumentsError(f"arm {arm.name}: {error}") from error
    for folder in (baseline.data.train, baseline.data.val):
        if not os.path.isdir(folder):
            raise ArgumentsError(f"{folder} is no folder; this makes it: {data.make}")


def measure(data, arms, *, seeds, epochs, jobs, out):
    """Trains the baseline and the arms, as far as that has not been done, all arms with a seed before the next seed.

    Args:
        data: :class:`~benchmarks.ablation.ablation_arms.Data`.
        arms: list of :class:`~benchmarks.parity_arms.Arm`, without the baseline.
        seeds: number of seeds; they are 0 and following.
        epochs: of each run.
        jobs: number of runs at the same time.
        out: folder of the runs.

    Returns:
        list of :class:`~benchmarks.parity_runs.Run`

    Raises:
        benchmarks.parity_runs.ParityError: a run failed, or ``out`` holds another study.
    """
    todo = [(arm, seed) for seed in range(seeds) for arm in (BASELINE, *arms)]
    return run_all(todo, config=data.config, settings=_settings(data, epochs), out=out, jobs=jobs, epochs=epochs)


def _settings(data, epochs):
    return [*data.settings, f"training.epochs={epochs}"]


def verdict(paired):
    """Returns in words what a comparison says.

    Args:
        paired: :class:`~benchmarks.parity_statistics.Paired`.
    """
    if paired.low is None:
        return "one seed: no interval"
    if paired.low > 0:
        return "better"
    return "worse" if paired.high < 0 else "no difference seen"


def as_json(runs, arms, **settings):
    """Returns a study as a dict for JSON: settings, machine, runs, and a row for the baseline and each arm.

    Args:
        runs: of the baseline and of all arms, with the same seeds.
        arms: as for :func:`measure`.
        **settings: of the study.
    """
    accuracies = {}
    for run in runs:
        accuracies.setdefault(run.arm, {})[run.seed] = run.accuracy
    return {
        "settings": {**settings, "level": LEVEL},
        **machine.record(),
        "rows": [_row(arm, runs, accuracies) for arm in (BASELINE, *arms)],
        "runs": [dataclasses.asdict(run) for run in runs],
    }


def _row(arm, runs, accuracies):
    own, reference = accuracies[arm.name], accuracies[BASELINE.name]
    row = {
        "arm": arm.name,
        "title": arm.title,
        "settings": list(arm.settings),
        "seeds": sorted(own),
        "mean": statistics.fmean(own.values()),
        "seconds": statistics.median(run.seconds for run in runs if run.arm == arm.name),
    }
    if arm != BASELINE:
        paired = compare([own[seed] for seed in row["seeds"]], [reference[seed] for seed in row["seeds"]])
        row["difference"] = {**dataclasses.asdict(paired), "verdict": verdict(paired)}
    return row


def table(record):
    """Returns the rows of a study as a table in Markdown.

    Args:
        record: from :func:`as_json`, also after it was read from a file.
    """
    level = record["settings"]["level"]
    columns = ["Arm", "Settings", "Accuracy, %", "Difference, points", f"{level:.0%} interval", "", "s a run"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    compared = [row for row in record["rows"] if "difference" in row]
    for row in record["rows"]:
        cells = [row["arm"], "" if row not in compared else row["title"], f"{row['mean']:.2f}"]
        cells += _difference(row["difference"]) if row in compared else [""] * 3
        lines.append(f"| {' | '.join([*cells, format(row['seconds'], '.0f')])} |")
    by_chance = (1 - level) * len(compared)
    seeds = len(record["rows"][0]["seeds"])
    lines += ["", f"Seeds: {seeds}. Of {len(compared)} arms that do nothing about {by_chance:.1f} would"]
    lines[-1] += ' be called "better" or "worse" by chance.'
    return "\n".join(lines)


def _difference(found):
    interval = "" if found["low"] is None else f"{found['low']:+.2f} to {found['high']:+.2f}"
    return [f"{found['mean']:+.2f}", interval, found["verdict"]]
