"""What the runs of a study say: a row for each arm, as JSON and as a table."""

import dataclasses
import statistics

from benchmarks import machine
from benchmarks.study.paired import LEVEL, compare


def as_json(study, runs, **settings):
    """Returns a study as a dict for JSON: settings, machine, a row for each arm, and the runs.

    Args:
        study: :class:`~benchmarks.study.study_arms.Study`.
        runs: list of :class:`~benchmarks.study.study_runs.Run`.
        **settings: whatever else was set.
    """
    return {
        "settings": {**settings, "overrides": list(study.settings), "margin": study.margin, "level": LEVEL},
        **machine.record(),
        "rows": [_row(arm, runs, study.margin) for arm in study.arms],
        "runs": [dataclasses.asdict(run) for run in runs],
    }


def _row(arm, runs, margin):
    accuracies = {run.seed: run.accuracy for run in runs if run.arm == arm.name}
    rates = [run.rate for run in runs if run.arm == arm.name and run.rate is not None]
    row = {"arm": arm.name, "title": arm.title, "settings": list(arm.settings), "masters": arm.masters}
    row |= {"seeds": sorted(accuracies), "mean": statistics.fmean(accuracies.values())}
    row["sd"] = statistics.stdev(accuracies.values()) if len(accuracies) > 1 else None
    row |= {"rate": statistics.median(rates) if rates else None, "against": arm.against}
    if arm.against is not None:
        reference = {run.seed: run.accuracy for run in runs if run.arm == arm.against}
        paired = compare(*zip(*((accuracies[seed], reference[seed]) for seed in row["seeds"]), strict=True), margin)
        row |= dataclasses.asdict(paired)
    return row


def table(record):
    """Returns the rows of a study as a table in Markdown.

    Args:
        record: from :func:`as_json`, also after it was read from a file.
    """
    columns = ["Arm", "Settings", "Seeds", "Accuracy, %", "Against", "Difference, points"]
    columns += [f"{record['settings']['level']:.0%} interval", "Verdict", "Images/s"]
    if all(row["rate"] is None for row in record["rows"]):
        columns.pop()
    lines = [columns, ["---"] * len(columns), *(_cells(row)[: len(columns)] for row in record["rows"])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row):
    spread = "" if row["sd"] is None else f" +- {row['sd']:.2f}"
    rate = "" if row["rate"] is None else f"{row['rate']:.0f}"
    own = [row["arm"], row["title"], str(len(row["seeds"])), f"{row['mean']:.2f}{spread}"]
    if row["against"] is None:
        return [*own, "", "", "", "", rate]
    interval = "" if row["low"] is None else f"{row['low']:+.2f} to {row['high']:+.2f}"
    return [*own, row["against"], f"{row['difference']:+.2f}", interval, row["verdict"], rate]
