"""Weak and strong scaling measured on this machine: ranks beside independent processes, in turns in one run.

Two cores may be two threads of one: what independent processes reach side by side is the ceiling.
"""

import contextlib
import dataclasses
import statistics

from tqdm import tqdm

from benchmarks import machine
from benchmarks.scaling import rank_steps
from benchmarks.scaling.rank_processes import Ranks
from benchmarks.scaling.rank_steps import MIXPREC, PLAIN, WRAPPED

WEAK, STRONG = "weak", "strong"
INDEPENDENT = "independent processes"
_NAMES = {MIXPREC: "mixprec, communicator=", WRAPPED: WRAPPED, PLAIN: "plain Chainer in ChainerMN's optimizer"}
_KINDS = {MIXPREC: MIXPREC, WRAPPED: MIXPREC, PLAIN: PLAIN}  # the program in one process that each is compared with


@dataclasses.dataclass(frozen=True)
class Arm:
    """What takes a turn.

    Attributes:
        program: one of those of :mod:`benchmarks.scaling.rank_steps`.
        ranks: number of processes.
        batch: images of each in a step.
        communicates: whether gradients are averaged over the ranks; if not, they are independent processes.
    """

    program: str
    ranks: int
    batch: int
    communicates: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        scaling: ``"weak"``, each rank has the batch of one process, or ``"strong"``, all ranks share it.
        name: of the program; independent processes say so.
        ranks: number of processes.
        batch: images of each in a step.
        images_per_second: of all, median over the turns.
        efficiency: images a second over those of as many processes, each as fast as one alone; median over the turns.
        lowest: the smallest one of a turn.
        highest: the largest one.
        of_ceiling: efficiency over that of independent processes of the same program; ``None`` for these themselves.
    """

    scaling: str
    name: str
    ranks: int
    batch: int
    images_per_second: float
    efficiency: float
    lowest: float
    highest: float
    of_ceiling: float | None


@dataclasses.dataclass(frozen=True)
class Measured:
    """What :func:`measure` has found.

    Attributes:
        title: what was trained, in a line.
        alone: dict from programs to the images a second of one process, the median.
        rows: list of :class:`Row`.
    """

    title: str
    alone: dict[str, float]
    rows: list[Row]

    def table(self):
        """Returns an aligned text table."""
        return "\n".join(self._lines())

    def as_json(self):
        """Returns all numbers as a dict for JSON, with what they were measured on."""
        return {**machine.record(), **dataclasses.asdict(self)}

    def _lines(self):
        yield f"measured: {self.title}"
        for program, rate in self.alone.items():
            yield f"  {f'{program}, one process':50}{rate:10.1f} images/s"
        for scaling, ranks in dict.fromkeys(map(_place, self.rows)):
            titles = f"{'images/s':>10}{'efficiency':>12}{'min-max':>12}{'of ceiling':>12}"
            yield f"{f'{scaling} scaling, {ranks} ranks':52}{titles}"
            for row in self.rows:
                if _place(row) == (scaling, ranks):
                    yield _line(row)


def _line(row):
    spread = f"{row.lowest:.2f}-{row.highest:.2f}"
    of_ceiling = "" if row.of_ceiling is None else f"{row.of_ceiling:12.2f}"
    return f"  {row.name:50}{row.images_per_second:10.1f}{row.efficiency:12.2f}{spread:>12}{of_ceiling}"


def _place(row):
    return row.scaling, row.ranks


def arms_of(numbers, batch):
    """Returns the list of :class:`Arm`, the processes alone first.

    Args:
        numbers: of ranks.
        batch: images of a rank in a step of weak scaling, and of all ranks in one of strong scaling.
    """
    found = [Arm(program, 1, batch, False) for program in (MIXPREC, PLAIN)]
    for ranks in numbers:
        for images in (batch, batch // ranks):
            found += [Arm(program, ranks, images, False) for program in (MIXPREC, PLAIN)]
            found += [Arm(program, ranks, images, True) for program in _KINDS]
    return found


def measure(network, *, arch, batch, numbers, dtype, blocks, seconds):
    """Measures all arms in turns.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images to logits.
        arch: its name.
        batch: as of :func:`arms_of`, which each number of ranks divides.
        numbers: of ranks, each at least 2.
        dtype: that mixprec computes in.
        blocks: number of turns that count.
        seconds: of a block, about.

    Returns:
        Measured

    Raises:
        RankError: ranks could not be started, or one of them has failed.
    """
    arms = arms_of(numbers, batch)
    with contextlib.ExitStack() as stack:
        groups = _start(stack, network, dtype, numbers)
        took = {arm: max(_all(groups, arm, rank_steps.warm_up, arm.batch)) for arm in arms}
        steps = {arm: max(1, round(seconds / each)) for arm, each in took.items()}
        turns = []
        with tqdm(total=blocks * len(arms), unit="block", leave=False, disable=None) as bar:
            for _ in range(blocks):
                turns.append({})
                for arm in arms:
                    bar.set_postfix_str(f"{arm.program}, {arm.ranks} x {arm.batch}")
                    times = _all(groups, arm, rank_steps.block, arm.batch, steps[arm])
                    turns[-1][arm] = sum(arm.batch * steps[arm] / time for time in times)
                    bar.update()
    title = f"{arch}, 32x32 pixels, batch {batch}, mixprec in {dtype}, NumPy, one thread of BLAS for each process"
    alone = {arm.program: statistics.median(turn[arm] for turn in turns) for arm in arms if arm.ranks == 1}
    return Measured(title, alone, rows_of(turns, numbers, batch))


def rows_of(turns, numbers, batch):
    """Returns the list of :class:`Row`.

    Args:
        turns: list of dicts from :class:`Arm` to images a second.
        numbers: of ranks.
        batch: as of :func:`arms_of`.
    """
    rows = []
    for scaling, ranks in ((scaling, ranks) for ranks in numbers for scaling in (WEAK, STRONG)):
        images = batch if scaling == WEAK else batch // ranks
        found = [Arm(program, ranks, images, False) for program in (MIXPREC, PLAIN)]
        rows += [_row(turns, arm, scaling, batch) for arm in [*found, *(Arm(p, ranks, images, True) for p in _KINDS)]]
    return rows


def _row(turns, arm, scaling, batch):
    kind = _KINDS[arm.program]
    alone, ceiling = Arm(kind, 1, batch, False), dataclasses.replace(arm, program=kind, communicates=False)
    efficiencies = [turn[arm] / (arm.ranks * turn[alone]) for turn in turns]
    name = _NAMES[arm.program] if arm.communicates else f"{arm.program}, {INDEPENDENT}: the ceiling"
    of_ceiling = statistics.median(turn[arm] / turn[ceiling] for turn in turns) if arm.communicates else None
    rate = statistics.median(turn[arm] for turn in turns)
    spread = statistics.median(efficiencies), min(efficiencies), max(efficiencies)
    return Row(scaling, name, arm.ranks, arm.batch, rate, *spread, of_ceiling)


def _start(stack, network, dtype, numbers):
    """Returns a dict from programs, numbers of ranks and whether they communicate to lists of :class:`Ranks`."""

    def ranks(program, number, communicates):
        found = stack.enter_context(Ranks(number))
        found.call(rank_steps.prepare, program, network, dtype, communicates)
        return found

    groups = {}
    for program in (MIXPREC, PLAIN):
        alone = [ranks(program, 1, False) for _ in range(max(numbers))]
        groups |= {(program, number, False): alone[:number] for number in (1, *numbers)}
    for program in _KINDS:
        groups |= {(program, number, True): [ranks(program, number, True)] for number in numbers}
    return groups


def _all(groups, arm, function, *arguments):
    """Has all processes of an arm call a function at the same time; returns the list of what they returned."""
    ranks = groups[arm.program, arm.ranks, arm.communicates]
    for each in ranks:
        each.ask(function, *arguments)
    return [answer for each in ranks for answer in each.answers()]
