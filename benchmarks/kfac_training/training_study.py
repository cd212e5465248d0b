"""The study: settings are chosen by tuning seeds, and the best of each optimizer is trained with others."""

import dataclasses
import math
import statistics

from benchmarks.kfac_training.compared_arms import Arm, arms_of


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        grid: see :mod:`benchmarks.kfac_training.compared_arms`.
        dtypes: that models compute in.
        tuning_seeds: by which settings are chosen.
        seeds: that are reported, others.
        targets: three accuracies, 0 to 1; epochs to the second one decide.
    """

    grid: dict[str, tuple]
    dtypes: tuple[str, ...]
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    targets: tuple[float, float, float]

    @property
    def trainings(self):
        """Number of trainings in all."""
        tuning = len(arms_of(self.grid)) * len(self.tuning_seeds)
        return len(self.dtypes) * (tuning + len(self.grid) * len(self.seeds))


def run(plan, train, goes_on):
    """Trains all; the optimizers take turns within a seed.

    Args:
        plan: :class:`Plan`.
        train: called with an :class:`~benchmarks.kfac_training.compared_arms.Arm`, a dtype and a seed; returns
            :class:`~benchmarks.kfac_training.training_run.Run`.
        goes_on: called before each training; returns whether there is time for it.

    Returns:
        tuple: ``(tuning, reported, complete)``: two lists of runs, and whether nothing was left out.
    """
    tuning, reported = [], []
    for dtype in plan.dtypes:
        own = []
        for seed in plan.tuning_seeds:
            for arm in arms_of(plan.grid):
                if not goes_on():
                    return tuning, reported, False
                own.append(train(arm, dtype, seed))
                tuning.append(own[-1])
        arms = [best(plan, own, name) for name in plan.grid]
        for seed in plan.seeds:
            for arm in arms:
                if not goes_on():
                    return tuning, reported, False
                reported.append(train(arm, dtype, seed))
    return tuning, reported, True


def best(plan, runs, name):
    """Returns the arm of an optimizer with the fewest epochs to the second accuracy, the median over seeds.

    Fewer epochs to the third one decide between equals, then a higher accuracy at the end.

    Args:
        plan: :class:`Plan`.
        runs: those of the tuning seeds.
        name: of the optimizer.
    """

    def rank(arm):
        own = [run for run in runs if (run.arm, run.settings) == (name, arm.settings)]
        second, third = (median([run.epochs_to(target) for run in own]) for target in plan.targets[1:])
        return second, third, -median([run.accuracies[-1] for run in own])

    return min((arm for arm in arms_of(plan.grid) if arm.name == name), key=rank)


def median(numbers):
    """Returns the median of numbers, some of which may be infinite; the upper one of two in the middle then."""
    found = statistics.median_low(numbers), statistics.median_high(numbers)
    return found[1] if math.inf in found else sum(found) / 2


def row_of(runs, targets):
    """Returns what the runs of one arm and dtype say, as a dict for JSON, with ``None`` for "never".

    Args:
        runs: of all seeds.
        targets: accuracies, as in :class:`Plan`.
    """
    first = runs[0]
    epochs = {target: [run.epochs_to(target) for run in runs] for target in targets}
    return {
        "arm": first.arm,
        "settings": first.settings,
        "dtype": first.dtype,
        "seeds": [run.seed for run in runs],
        "epochs": {f"{target:g}": list(map(_finite, numbers)) for target, numbers in epochs.items()},
        "median_epochs": {f"{target:g}": _finite(median(numbers)) for target, numbers in epochs.items()},
        "milliseconds": median([run.milliseconds for run in runs]),
        "seconds": [_finite(run.seconds_to(targets[1])) for run in runs],
        "median_seconds": _finite(median([run.seconds_to(targets[1]) for run in runs])),
        "accuracies": [run.accuracies[-1] for run in runs],
        "median_accuracy": median([run.accuracies[-1] for run in runs]),
        "skipped": sum(run.skipped for run in runs),
    }


def as_json(plan, tuning, reported, complete):
    """Returns grid, all runs, and a row for each optimizer and dtype, as a dict for JSON."""
    groups = {}
    for each in reported:
        groups.setdefault((each.dtype, each.arm), []).append(each)
    return {
        "complete": complete,
        "grid": [{"arm": arm.name, **arm.settings} for arm in arms_of(plan.grid)],
        "tuning_seeds": list(plan.tuning_seeds),
        "targets": list(plan.targets),
        "rows": [row_of(runs, plan.targets) for runs in groups.values()],
        "tuning": list(map(dataclasses.asdict, tuning)),
        "runs": list(map(dataclasses.asdict, reported)),
    }


def table(record):
    """Returns rows of a record, from :func:`as_json` or from a file, as a table in Markdown."""
    names = [f"{target:g}" for target in record["targets"]]
    heads = [f"to {target:.0%}" for target in record["targets"]]
    columns = ["Optimizer", "Settings", *heads, "ms a step", f"s {heads[1]}", "Accuracy, %"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in record["rows"]:
        epochs = [
            f"{_text(row['median_epochs'][name])} ({' '.join(map(_text, row['epochs'][name]))})" for name in names
        ]
        settings = Arm(row["arm"], tuple(row["settings"].values())).title
        cells = [f"{row['arm']}, {row['dtype']}", settings, *epochs, f"{row['milliseconds']:.1f}"]
        cells += [_text(row["median_seconds"], ".1f"), f"{100 * row['median_accuracy']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    if not record["complete"]:
        lines.append("\nThe time was over before the end: rows have fewer seeds, or are missing.")
    return "\n".join(lines)


def _finite(number):
    return number if number < math.inf else None


def _text(number, form="g"):
    return "-" if number is None else format(number, form)
