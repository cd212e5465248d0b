"""The cost of the optimizer's step on a GPU: over the time that its bytes need, beside torch's fused optimizers."""

import dataclasses
import statistics

import chainer
from chainer import optimizers

from benchmarks import compared_optimizers, gpu
from mixprec import environment

# Bytes that a step with a WeightDecay hook reads and writes for an element: the gradient twice, as it is checked before
# anything is written; master and state; the float16 parameter, which the user may have written to.
BYTES = {
    "MomentumSGD": {"float16": 16 + 10, "float32": 16 + 8},
    "Adam": {"float16": 20 + 14, "float32": 20 + 12},
}
_TORCH = {"MomentumSGD": ("SGD", {"momentum": 0.9}), "Adam": ("Adam", {})}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        part: name of the optimizer.
        name: of the optimizer.
        microseconds: median time of a step; ``None`` if it could not be measured.
        spread: half of the distance between the quickest and the slowest turn, in microseconds.
        floors: time over that of the bytes that mixprec has to move, at the bandwidth of a copy.
        note: why it could not be measured.
    """

    part: str
    name: str
    microseconds: float | None = None
    spread: float | None = None
    floors: float | None = None
    note: str = ""


def measure(network, *, classes=1000, repeats=7):
    """Times ``optimizer.update()`` on the first GPU, between events on its stream, with a WeightDecay hook.

    Args:
        network: callable from the number of classes to a Chainer link, whose shapes the parameters have.
        classes: number of classes.
        repeats: number of timed turns; one more is run before.

    Returns:
        ``(rows, settings)``: a list of :class:`Row`, and a dict with the GPU's name and bandwidth. Without a GPU there
        are no rows, and ``settings`` says why.
    """
    specifier, reason = environment.resolve_device("auto")
    if specifier == "@numpy":
        return [], {"missing": reason.removeprefix("CPU: ")}
    device = chainer.get_device(specifier)
    device.use()
    bandwidth = gpu.bandwidth(device, repeats)
    shapes = [param.shape for param in network(classes).params()]
    rows = [row for name in BYTES for row in _compare(name, shapes, device, bandwidth, repeats)]
    return rows, {"device": reason, "copy_gigabytes_per_second": bandwidth / 1e9}


def table(rows, settings):
    """Returns what :func:`measure` found as an aligned text table, or as the line that says why there is none."""
    if "missing" in settings:
        return f"not measured on a GPU: {settings['missing']}"
    lines = [f"{settings['device']}, copies {settings['copy_gigabytes_per_second']:.0f} GB/s"]
    for part in dict.fromkeys(row.part for row in rows):
        lines.append(f"{part + ', weight decay':44}{'us a step':>12}{'+-':>10}{'floors':>8}")
        lines += [_line(row) for row in rows if row.part == part]
    return "\n".join(lines)


def as_json(rows, settings):
    """Returns what :func:`measure` found as a dict for JSON."""
    return {**settings, "rows": [dataclasses.asdict(row) for row in rows]}


def floor(name, shapes, bandwidth):
    """Returns the seconds that a step of mixprec needs to move its bytes.

    Args:
        name: of the optimizer, ``"MomentumSGD"`` or ``"Adam"``.
        shapes: shapes of the parameters.
        bandwidth: bytes read and written in a second.
    """
    moved = sum(param.size * BYTES[name][param.dtype.name] for param in compared_optimizers.chain(shapes).params())
    return moved / bandwidth


def _compare(name, shapes, device, bandwidth, repeats):
    """Measures an optimizer: plain Chainer's loop over parameters, mixprec, torch."""

    def on_device():
        model = compared_optimizers.chain(shapes)
        model.to_device(device)
        return model

    rule = getattr(optimizers, name)
    compared = {
        "plain Chainer": compared_optimizers.plain(rule(compared_optimizers.LR), on_device(), True),
        "mixprec": compared_optimizers.mixed(rule(compared_optimizers.LR), on_device(), True),
    }
    torch_name, options = _TORCH[name]
    title = f"torch.optim.{torch_name}, fused, float32"
    torch, why = compared_optimizers.import_torch()
    if torch is not None and not torch.cuda.is_available():
        why = f"torch {torch.__version__} has no GPU"
    missing = [Row(name, title, note=why)] if why else []
    if not missing:
        compared[title] = compared_optimizers.with_torch(
            torch, torch_name, shapes, True, f"cuda:{device.device.id}", fused=True, **options
        )
    times = compared_optimizers.take_turns(compared, repeats, lambda step: gpu.seconds(device, step))
    least = floor(name, shapes, bandwidth)
    return [_row(name, optimizer, seconds, least) for optimizer, seconds in times.items()] + missing


def _row(part, name, seconds, least):
    median, spread = statistics.median(seconds), (max(seconds) - min(seconds)) / 2
    return Row(part, name, median * 1e6, spread * 1e6, median / least)


def _line(row):
    if row.microseconds is None:
        return f"  {row.name:42}{row.note}"
    return f"  {row.name:42}{row.microseconds:12.0f}{row.spread:10.0f}{row.floors:8.2f}"
