"""The cost of each primitive of a ResNet-50 step on a GPU, beside the time that its bytes or its products need.

The floor of a call is the larger one of two times: all its arrays, read or written once, at the bandwidth of a copy,
and its floating-point operations at the rate of a large matrix product, both measured in the same run.
"""

import collections
import dataclasses

import chainer
import numpy as np

from benchmarks import compared_optimizers, gpu
from benchmarks.floors import moved, operations, shapes_of
from benchmarks.recording_device.primitive_calls import Spec
from benchmarks.step import by_hand
from mixprec import environment
from mixprec.backends import primitives_of

_STEPS = 20


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: a primitive on arrays of one shape.

    Attributes:
        name: of the primitive.
        shapes: of its arrays.
        count: how often a step of the network calls it so.
        microseconds: median time of a call; ``None`` if it failed.
        floor: microseconds that it needs at least.
        limit: ``"bytes"`` or ``"operations"``, whichever takes longer.
        engine: cuDNN's name of what computed it, or ``"own"``.
        note: why it failed.
    """

    name: str
    shapes: str
    count: int
    microseconds: float | None
    floor: float
    limit: str
    engine: str
    note: str = ""

    @property
    def share(self):
        """The floor over the time."""
        return self.floor / self.microseconds


def measure(*, batch=32, size=224, dtype="float16", repeats=5):
    """Times every primitive that a forward and backward pass of ResNet-50 calls, on the first GPU.

    Returns:
        ``(rows, settings)``: a list of :class:`Row`, and a dict with the GPU's name and rates. Without a GPU there are
        no rows, and ``settings`` says why.
    """
    specifier, reason = environment.resolve_device("auto")
    if specifier == "@numpy":
        return [], {"missing": reason.removeprefix("CPU: ")}
    device = chainer.get_device(specifier)
    device.use()
    primitives = primitives_of(device.xp.empty(0, np.float32))
    rates = gpu.bandwidth(device, repeats), gpu.flops(device, repeats)

    def time(call):
        times = compared_optimizers.take_turns({"call": call}, repeats, lambda step: gpu.seconds(device, step, _STEPS))
        return float(np.median(times["call"]))

    counted = collections.Counter(by_hand.calls("resnet50", batch=batch, size=size, dtype=dtype))
    rows = [row_of(call, count, primitives, device.send, time, rates) for call, count in counted.items()]
    return rows, {
        "device": reason,
        "copy_gigabytes_per_second": rates[0] / 1e9,
        "product_teraflops": rates[1] / 1e12,
    }


def row_of(call, count, primitives, send, time, rates):
    """Measures one primitive.

    Args:
        call: :class:`~benchmarks.recording_device.primitive_calls.Call`.
        count: how often a step calls it.
        primitives: those of the device.
        send: callable that copies an array of NumPy to the device.
        time: callable from a callable to the seconds that it takes.
        rates: bytes and floating-point operations in a second.

    Returns:
        Row
    """
    random = np.random.RandomState(0)
    arguments = [_filled(value, random, send) for value in call.arguments]
    keywords = {name: _filled(value, random, send) for name, value in call.keywords}
    primitive = getattr(primitives, call.name)
    known = set(primitives.cudnn.plans())
    shapes = shapes_of(call.arguments)
    try:
        result = primitive(*arguments, **keywords)
        seconds = time(lambda: primitive(*arguments, **keywords))
    except Exception as error:  # the other rows are worth having
        return Row(call.name, shapes, count, None, 0.0, "", "", f"{type(error).__name__}: {error}")
    engines = [plan.engine for plan in primitives.cudnn.plans() if plan not in known]
    floors = {
        "bytes": moved((call.arguments, call.keywords, result)) / rates[0],
        "operations": operations(call, result) / rates[1],
    }
    limit = max(floors, key=floors.get)
    return Row(call.name, shapes, count, seconds * 1e6, floors[limit] * 1e6, limit, "+".join(engines) or "own")


def table(rows, settings):
    """Returns what :func:`measure` found as an aligned text table, or as the line that says why there is none."""
    if "missing" in settings:
        return f"not measured on a GPU: {settings['missing']}"
    lines = [
        f"{settings['device']}, copies {settings['copy_gigabytes_per_second']:.0f} GB/s, products "
        f"{settings['product_teraflops']:.0f} TFLOP/s",
        f"{'':30}{'times':>6}{'us':>10}{'floor us':>10}{'share':>7}  engine",
    ]
    for row in rows:
        lines.append(f"{row.name:30}{row.count:6}{_numbers(row)}  {row.note or row.engine}  {row.shapes}")
    measured = [row for row in rows if row.microseconds is not None]
    total, floor = (sum(row.count * getattr(row, name) for row in measured) for name in ("microseconds", "floor"))
    if total:
        lines.append(f"{'all':36}{total:10.0f}{floor:10.0f}{floor / total:7.2f}")
    return "\n".join(lines)


def as_json(rows, settings):
    """Returns what :func:`measure` found as a dict for JSON."""
    return {**settings, "rows": [dataclasses.asdict(row) for row in rows]}


def _numbers(row):
    if row.microseconds is None:
        return f"{'':27}"
    return f"{row.microseconds:10.1f}{row.floor:10.1f}{row.share:7.2f}"


def _filled(value, random, send):
    """Returns an argument with arrays on the device in the place of specs; integers are 0, others near 1."""
    if isinstance(value, Spec):
        dtype = np.dtype(value.dtype)
        if dtype.kind in "fV":
            return send(random.uniform(0.5, 1.5, value.shape).astype(np.float32).astype(dtype))
        return send(np.zeros(value.shape, dtype))
    if isinstance(value, tuple):
        parts = [_filled(part, random, send) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
