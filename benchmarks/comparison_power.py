"""Which faults of a graph the comparison of :func:`mixprec.capture` finds, and whether it lets a right graph pass.

The command ``comparison`` of ``scripts/benchmark.py``; ``docs/capture.md`` has its table.
"""

import itertools
import random
from typing import NamedTuple


from benchmarks import machine
from benchmarks.command_arguments import add_arch, amount, positive, positives
from benchmarks.comparison_runs import FAULTS, NOISE, Training
from benchmarks.record_files import add_command
from mixprec.graph_capture.specialization import CONFIRMED
from mixprec.graph_capture.verification import Outcome, Verification, noise_of
from models import MODELS

_RUNS = 6  # from each state
_PAIRINGS = 100  # of four of them: two eager steps, two launches
_FAULTY = 3  # runs of each fault


class Power(NamedTuple):
    """What was found after a number of steps.

    Attributes:
        steps: that number.
        exact: dict from faults to whether each of its runs differs where nothing varies, bit for bit.
        noisy: likewise where sums vary: how many of ``_FAULTY`` pairings differ.
        differing: how many right pairings differ in one call.
        refused: how many differ in so many calls in a row that the graph would be refused.
        pairings: of how many.
    """

    steps: int
    exact: dict
    noisy: dict
    differing: int
    refused: int
    pairings: int


class _Compared:
    """The runs of one state, and their comparison.

    Args:
        before: dict of arrays, the state.
        runs: list of dicts of arrays, right ones.
    """

    def __init__(self, before, runs):
        self._verification = Verification({name: array.copy() for name, array in before.items()}, False)
        self._runs = [self._outcome(run) for run in runs]
        self._noise = {}

    def _outcome(self, run):
        self._verification.take(Outcome([], {name: array.reshape(-1) for name, array in run.items()}))
        return self._verification.outcome([])

    def _apart(self, a, b):
        self._verification.take(a)
        return self._verification.apart(b)

    def differs(self, eager, launches):
        """Whether launches are another step than two eager ones; numbers of right runs, or runs with a fault."""
        (first, second), (launch, again) = (
            [self._runs[run] if isinstance(run, int) else self._outcome(run) for run in pair] for pair in (eager, launches)
        )
        if self._verification.difference(launch, second) is None:
            return False
        noise = noise_of(self._apart(second, first), self._apart(again, launch))
        return self._verification.difference(launch, second, noise) is not None


def measure(training, targets, say=lambda text: None):
    """Looks at the comparison after so many steps each.

    Args:
        training: :class:`Training`.
        targets: ascending numbers of steps.
        say: called with a line of progress.

    Yields:
        :class:`Power`.
    """
    draw = random.Random(0)
    quadruples = list(itertools.permutations(range(_RUNS), 4))
    with training.sums.varying():
        for target in targets:
            training.advance(target)
            pairings = draw.sample(quadruples, _PAIRINGS)
            differs = []
            for call in range(CONFIRMED):
                training.begin()
                compared = _Compared(training.before, [training.run() for _ in range(_RUNS)])
                differs.append([compared.differs(pairing[:2], pairing[2:]) for pairing in pairings])
                if call == 0:
                    noisy = {name: _found(training, compared, fault) for name, fault in FAULTS.items()}
                    exact = _exactly(training)
                training.end()
            refused = sum(all(each) for each in zip(*differs, strict=True))
            found = Power(target, exact, noisy, sum(map(sum, differs)), refused, _PAIRINGS)
            say(f"after {target} steps: {found.differing} of {CONFIRMED * _PAIRINGS} differ, {refused} are refused")
            yield found


def _found(training, compared, fault):
    runs = [training.run(fault) for _ in range(_FAULTY)]
    launches = itertools.permutations(range(_FAULTY), 2)
    return sum(
        compared.differs((2 * number, 2 * number + 1), (runs[one], runs[other]))
        for number, (one, other) in zip(range(_FAULTY), launches, strict=False)
    )


def _exactly(training):
    """Faults where nothing varies: compared as ``cudnn.deterministic`` has it, bit for bit."""
    training.sums.noise = 0.0
    right, again = training.run(), training.run()
    found = {name: _differ(training.run(fault), right) for name, fault in FAULTS.items()}
    training.sums.noise = NOISE
    if _differ(again, right):
        raise RuntimeError("a step on NumPy is not the same bit for bit when it is repeated")
    return found


def _differ(a, b):
    return any(a[name].tobytes() != b[name].tobytes() for name in b)


def table(found):
    """Returns what was found as Markdown, from a list of :class:`Power`."""
    columns = [f"{title} {power.steps}" for title in ("exact,", "noise,") for power in found]
    lines = [["Fault", *columns], ["---"] * (len(columns) + 1)]
    for name in FAULTS:
        exact = ["found" if power.exact[name] else "not found" for power in found]
        lines.append([name, *exact, *(_in_words(power.noisy[name]) for power in found)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _in_words(count):
    return "found" if count == _FAULTY else "not found" if count == 0 else f"{count} of {_FAULTY}"


def add(commands):
    """Adds the command to ``scripts/benchmark.py``."""
    text = "which faults the comparison of a new graph finds, and whether it lets right graphs pass, on NumPy"
    own = add_command(commands, _run, "comparison", text)
    add_arch(own, "resnet20", MODELS)
    own.add_argument("--size", type=positive, default=32, help="height and width of an image in pixels")
    own.add_argument("--batch", type=positive, default=8, help="images in a batch")
    own.add_argument("--lr", type=amount, default=1e-3, help="learning rate")
    own.add_argument("--steps", type=positives, default=[3, 30, 110, 300], help="of training, with commas, ascending")


def _run(save, arch, size, batch, lr, steps):
    print(f"{arch}, {size}x{size} pixels, one batch of {batch}, learning rate {lr:g}", flush=True)
    training = Training(arch, size=size, batch=batch, lr=lr)
    found = list(measure(training, sorted(steps), lambda text: print(text, flush=True)))
    print(table(found))
    settings = {"arch": arch, "size": size, "batch": batch, "lr": lr, "steps": steps}
    save({"settings": settings, **machine.record(), "rows": [power._asdict() for power in found]})
