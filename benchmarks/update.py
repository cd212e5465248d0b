"""The cost of the optimizer's step alone, beside plain Chainer's and torch's in the same run."""

import contextlib
import dataclasses
import functools
import statistics
import time

from chainer import optimizers

from benchmarks import compared_optimizers, machine
from mixprec.native.native_library import library

MIX = ((512, 512, 3, 3),) * 4 + ((1024, 256),) * 8 + ((256,),) * 100  # large and small parameters
_MOMENTUM = 0.9
_PLAIN, _BATCHED, _LOOP, _TORCH = "plain Chainer", "mixprec", "mixprec, batched=False", "torch.optim.SGD, foreach"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        part: what was updated.
        name: of the optimizer.
        microseconds: median time of a step; ``None`` if it could not be measured.
        spread: half of the distance between the quickest and the slowest turn, in microseconds.
        ratio: time of plain Chainer in the same part over this time.
        wanted: what the ratio should be at least for ResNet-50; ``None`` where nothing is promised.
        note: why it could not be measured.
    """

    part: str
    name: str
    microseconds: float | None = None
    spread: float | None = None
    ratio: float | None = None
    wanted: float | None = None
    note: str = ""


def measure(network, *, classes=1000, repeats=7, threads=1):
    """Times ``optimizer.update()`` of MomentumSGD on NumPy, with and without a WeightDecay hook.

    Nothing is run forward or backward: weights are in float16, all else in float32, and the gradients are random
    numbers that were written into the parameters. In the parts of :data:`MIX` all parameters have one dtype.

    In the first parts the parameters have the network's shapes. In the others every one has one element, so that only
    what the host does for each parameter is left; once all of them in one link, once in the links of the network. There
    a turn is the median of 20 steps in a row: the first one, after other code has had the caches, takes longer.

    Args:
        network: callable from the number of classes to a Chainer link.
        classes: number of classes.
        repeats: number of timed turns; one more is run before.
        threads: of the native library and of torch.

    Returns:
        list of Row
    """
    shapes = [param.shape for param in network(classes).params()]
    single = [(1,) * len(shape) for shape in shapes]

    def links():
        model = network(classes)
        for param in model.params():
            param.array = compared_optimizers.values((1,) * param.ndim)
        return compared_optimizers.with_gradients(model)

    rows = []
    for name, wanted in (("float16", 10), ("float32", None)):
        rows += _compare(
            f"mix of shapes, {name}, weight decay",
            functools.partial(compared_optimizers.chain, MIX, name),
            True,
            wanted,
            1,
            repeats,
            MIX,
            threads,
        )
    for hook, suffix, wanted in ((True, ", weight decay", 10), (False, "", 1.3)):
        rows += _compare(
            "all elements" + suffix,
            lambda: compared_optimizers.chain(shapes),
            hook,
            wanted,
            1,
            repeats,
            shapes,
            threads,
        )
    for hook, suffix in ((True, ", weight decay"), (False, "")):
        rows += _compare("one element each" + suffix, lambda: compared_optimizers.chain(single), hook, 10, 20, repeats)
        rows += _compare("one element each, in links" + suffix, links, hook, 10, 20, repeats)
    return rows


def table(rows):
    """Returns the rows as an aligned text table."""
    lines = []
    for part in dict.fromkeys(row.part for row in rows):
        lines.append(f"{part:44}{'us a step':>12}{'+-':>10}{'ratio':>8}{'wanted':>8}")
        lines += [_line(row) for row in rows if row.part == part]
    return "\n".join(lines)


def as_json(rows, gpu, threads=1, **settings):
    """Returns rows and settings as a dict for JSON, with what they were measured on.

    Args:
        rows: what :func:`measure` returned.
        gpu: what the GPU module has for JSON.
        threads: of the native library and of torch.
        settings: whatever else was set.
    """
    return {
        "settings": settings,
        **machine.record(),
        "threads": threads,
        "rows": [dataclasses.asdict(row) for row in rows],
        "gpu": gpu,
    }


@contextlib.contextmanager
def _threads(count):
    """Gives the native library so many threads."""
    if library() is None:
        yield
        return
    before = library().threads()
    library().set_threads(count)
    try:
        yield
    finally:
        library().set_threads(before)


def _compare(part, make, hook, wanted, steps, repeats, torch_shapes=None, threads=1):
    """Measures a part: plain Chainer, mixprec twice and, if it gets shapes for it, torch."""
    compared = {
        _PLAIN: compared_optimizers.plain(_rule(), make(), hook),
        _BATCHED: compared_optimizers.mixed(_rule(), make(), hook),
        _LOOP: compared_optimizers.mixed(_rule(), make(), hook, batched=False),
    }
    missing = []
    if torch_shapes is not None:
        torch, why = compared_optimizers.import_torch()
        if torch is None:
            missing.append(Row(part, _TORCH, note=why))
        else:
            torch.set_num_threads(threads)
            compared[_TORCH] = compared_optimizers.with_torch(
                torch, "SGD", torch_shapes, hook, momentum=_MOMENTUM, foreach=True
            )

    def time_step(step):
        return statistics.median(_seconds(step) for _ in range(steps))

    with _threads(threads):
        times = compared_optimizers.take_turns(compared, repeats, time_step)
    base = statistics.median(times[_PLAIN])
    return [_row(part, name, seconds, base, wanted) for name, seconds in times.items()] + missing


def _seconds(step):
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _rule():
    return optimizers.MomentumSGD(lr=compared_optimizers.LR, momentum=_MOMENTUM)


def _row(part, name, seconds, base, wanted):
    median, spread = statistics.median(seconds), (max(seconds) - min(seconds)) / 2
    return Row(part, name, median * 1e6, spread * 1e6, base / median, wanted if name == _BATCHED else None)


def _line(row):
    if row.microseconds is None:
        return f"  {row.name:42}{row.note}"
    wanted = "" if row.wanted is None else f">= {row.wanted:g}"
    return f"  {row.name:42}{row.microseconds:12.0f}{row.spread:10.0f}{row.ratio:8.2f}{wanted:>8}".rstrip()
