"""Which faults of a graph the comparison of :func:`mixprec.capture` finds, and whether it lets a right graph pass.

The command ``comparison`` of ``scripts/benchmark.py``; ``docs/capture.md`` has its table.
"""

import random
from typing import NamedTuple

from benchmarks import machine
from benchmarks.command_arguments import add_arch, amount, positive, positives
from benchmarks.comparison_runs import FAULTS, NOISE, SKIPPED, Training
from benchmarks.record_files import add_command
from mixprec.graph_capture.doubts import CALLS, MOST_RUNS
from mixprec.graph_capture.verification import Outcome, Runs, Verification
from models import MODELS

_RUNS = 16  # from each state, of which pairings are drawn


class Power(NamedTuple):
    """What was found after a number of steps.

    Attributes:
        steps: that number.
        exact: dict from faults to whether they are found where nothing varies, bit for bit.
        noisy: likewise where sums vary: in how many of the calls in a row that a refusal takes.
        differing: how many right graphs differ in each of these calls.
        refused: in how many the same array differs in all of them, so that the graph would be refused.
        pairings: of how many.
    """

    steps: int
    exact: dict
    noisy: dict
    differing: list
    refused: int
    pairings: int


class _State:
    """The comparison of runs from one state.

    Args:
        before: dict of arrays, the state.
        bitwise: whether bits are compared.
    """

    def __init__(self, before, bitwise):
        arrays = {name: array.copy() for name, array in before.items()}
        self._verification = Verification(arrays, bitwise, (SKIPPED,))

    def outcome(self, run):
        """Returns what a run has left, as :class:`~mixprec.graph_capture.verification.Outcome`."""
        self._verification.take(Outcome({name: array.reshape(-1) for name, array in run.items()}, {}))
        return self._verification.outcome([])

    def differing(self, launches, eager):
        """Returns the names of what differs; both are lists of outcomes."""
        return set(self._verification.differences(self._runs(launches), self._runs(eager)))

    def _runs(self, outcomes):
        apart = {}
        for each in outcomes[1:]:
            self._verification.take(each)
            apart = self._verification.apart(outcomes[0], [], apart)
        return Runs(outcomes[0], apart)


def measure(training, targets, pairings, say=lambda text: None):
    """Looks at the comparison after so many steps each, and in the calls that follow.

    Args:
        training: :class:`~benchmarks.comparison_runs.Training`.
        targets: ascending numbers of steps.
        pairings: number of right graphs.
        say: called with a line of progress.

    Yields:
        :class:`Power`.
    """
    draw = random.Random(0)
    with training.sums.varying():
        for target in targets:
            training.advance(target)
            exact, right, wrong = None, [], {name: [] for name in FAULTS}
            for runs in (min(2 + call, MOST_RUNS) for call in range(CALLS)):
                training.begin()
                exact = exact or _exactly(training)
                state = _State(training.before, False)
                outcomes = [state.outcome(training.run()) for _ in range(_RUNS)]
                drawn = [draw.sample(outcomes, 2 * runs) for _ in range(pairings)]
                right.append([state.differing(each[:runs], each[runs:]) for each in drawn])
                for name, fault in FAULTS.items():
                    faulty = [state.outcome(training.run(fault)) for _ in range(runs)]
                    wrong[name].append(bool(state.differing(faulty, draw.sample(outcomes, runs))))
                training.end()
            refused = sum(bool(set.intersection(*names)) for names in zip(*right, strict=True))
            noisy = {name: sum(calls) for name, calls in wrong.items()}
            found = Power(target, exact, noisy, [sum(map(bool, names)) for names in right], refused, pairings)
            say(f"after {target} steps: {refused} of {pairings} right graphs refused; in its calls {found.differing}")
            yield found


def _exactly(training):
    """Faults where nothing varies: compared as with ``cudnn.deterministic``, bit for bit."""
    training.sums.noise = 0.0
    state = _State(training.before, True)
    right, again = (state.outcome(training.run()) for _ in range(2))
    found = {name: bool(state.differing([state.outcome(training.run(each))], [right])) for name, each in FAULTS.items()}
    training.sums.noise = NOISE
    if state.differing([again], [right]):
        raise RuntimeError("a step on NumPy is not the same bit for bit when it is repeated")
    return found


def table(found):
    """Returns what was found as Markdown, from a list of :class:`Power`."""
    columns = [f"{title} {power.steps}" for title in ("exact,", "noise,") for power in found]
    lines = [["Fault", *columns], ["---"] * (len(columns) + 1)]
    for name in FAULTS:
        exact = ["found" if power.exact[name] else "not found" for power in found]
        lines.append([name, *exact, *(_in_words(power.noisy[name]) for power in found)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _in_words(count):
    return "found" if count == CALLS else f"{count} of {CALLS}" if count else "not found"


def add(commands):
    """Adds the command to ``scripts/benchmark.py``."""
    text = "which faults the comparison of a new graph finds, and whether it lets right graphs pass, on NumPy"
    own = add_command(commands, _run, "comparison", text)
    add_arch(own, "resnet20", MODELS)
    own.add_argument("--size", type=positive, default=32, help="height and width of an image in pixels")
    own.add_argument("--batch", type=positive, default=8, help="images in a batch")
    own.add_argument("--lr", type=amount, default=1e-3, help="learning rate")
    own.add_argument("--pairings", type=positive, default=100, help="right graphs that are compared after each of them")
    own.add_argument("--steps", type=positives, default=[3, 30, 110, 300], help="of training, with commas, ascending")


def _run(save, arch, size, batch, lr, pairings, steps):
    print(f"{arch}, {size}x{size} pixels, one batch of {batch}, learning rate {lr:g}", flush=True)
    training = Training(arch, size=size, batch=batch, lr=lr)
    found = list(measure(training, sorted(steps), pairings, lambda text: print(text, flush=True)))
    print(table(found))
    settings = {"arch": arch, "size": size, "batch": batch, "lr": lr, "pairings": pairings, "steps": steps}
    save({"settings": settings, **machine.record(), "rows": [power._asdict() for power in found]})
