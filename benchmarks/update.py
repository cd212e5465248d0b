"""The cost of the optimizer's step alone, beside plain Chainer's and torch's in the same run.

All of them take as many threads as ``OMP_NUM_THREADS`` says, by default one for each core.
"""

import dataclasses
import functools
import statistics

from chainer import optimizers

from benchmarks import compared_optimizers, machine
from mixprec.base.process_limits import number_of_threads

MIX = ((512, 512, 3, 3),) * 4 + ((1024, 256),) * 8 + ((256,),) * 100  # large and small parameters
_MOMENTUM = 0.9
_PLAIN, _BATCHED, _LOOP, TORCH = "plain Chainer", "mixprec", "mixprec, batched=False", "torch.optim.SGD, foreach"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        part: what was updated.
        name: of the optimizer.
        microseconds: median time of a step.
        spread: half of the distance between the quickest and the slowest turn, in microseconds.
        ratio: time of plain Chainer in the same part over this time.
    """

    part: str
    name: str
    microseconds: float
    spread: float
    ratio: float


def measure(network, *, classes=1000, repeats=7):
    """Times ``optimizer.update()`` of MomentumSGD on NumPy, with and without a WeightDecay hook.

    Nothing is run forward or backward: weights are in float16, all else in float32, and the gradients are random
    numbers that were written into the parameters. In the parts of :data:`MIX` all parameters have one dtype.

    In the other parts the parameters have the network's shapes, or one element each, so that only what the host does
    for each parameter is left. There a turn is the median of 20 steps in a row: the first one, after other code has had
    the caches, takes longer.

    Args:
        network: callable from the number of classes to a Chainer link.
        classes: number of classes.
        repeats: number of timed turns; one more is run before.

    Returns:
        list of Row; without rows of torch where it cannot be imported.
    """
    shapes = [param.shape for param in network(classes).params()]
    single = [(1,) * len(shape) for shape in shapes]
    parts = {
        "mix of shapes, float16, weight decay": (MIX, "float16", True, 1),
        "mix of shapes, float32, weight decay": (MIX, "float32", True, 1),
        "all elements, weight decay": (shapes, None, True, 1),
        "all elements": (shapes, None, False, 1),
        "one element each, weight decay": (single, None, True, 20),
        "one element each": (single, None, False, 20),
    }
    return [row for part, own in parts.items() for row in _rows(part, *own, repeats)]


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = []
    for part in dict.fromkeys(row.part for row in rows):
        lines.append(f"{part:44}{'us a step':>12}{'+-':>10}{'ratio':>8}")
        own = [row for row in rows if row.part == part]
        lines += [f"  {row.name:42}{row.microseconds:12.0f}{row.spread:10.0f}{row.ratio:8.2f}" for row in own]
    return "\n".join(lines)


def as_json(rows, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on."""
    return machine.as_json(rows, {**settings, "threads": number_of_threads()})


def _rows(part, shapes, dtype, hook, steps, repeats):
    """Measures a part: plain Chainer, mixprec twice and torch."""
    make = functools.partial(compared_optimizers.chain, shapes, dtype)
    compared = {
        _PLAIN: compared_optimizers.plain(_rule(), make(), hook),
        _BATCHED: compared_optimizers.mixed(_rule(), make(), hook),
        _LOOP: compared_optimizers.mixed(_rule(), make(), hook, batched=False),
    }
    torch, _ = compared_optimizers.import_torch()
    if torch is not None:
        torch.set_num_threads(number_of_threads())
        options = {"momentum": _MOMENTUM, "foreach": True}
        compared[TORCH] = compared_optimizers.with_torch(torch, "SGD", shapes, hook, **options)

    def time_step(step):
        return statistics.median(compared_optimizers.seconds(step) for _ in range(steps))

    times = compared_optimizers.take_turns(compared, repeats, time_step)
    base = statistics.median(times[_PLAIN])
    return [_row(part, name, seconds, base) for name, seconds in times.items()]


def _rule():
    return optimizers.MomentumSGD(lr=compared_optimizers.LR, momentum=_MOMENTUM)


def _row(part, name, seconds, base):
    median, spread = statistics.median(seconds), (max(seconds) - min(seconds)) / 2
    return Row(part, name, median * 1e6, spread * 1e6, base / median)
