"""A training step on a GPU, eager and as one CUDA graph: time, Python, memory.

Each contestant lives in a process of its own, so that the memory of one does not count for the other. Engines of cuDNN
are chosen before, in a process that ends: both use the same, and what it takes to choose them counts for neither.
"""

import contextlib
import dataclasses
import functools
import statistics
import time

import chainer
import chainer.links as L
import numpy as np

import mixprec
from benchmarks import capture, contestants, gpu
from benchmarks.device_memory import peak_of
from benchmarks.processes import Worker
from mixprec import environment
from mixprec.backends import graphs_of
from mixprec.backends.cudnn import settings

EAGER, CAPTURED = "eager", "captured"
BOUND, BOUND_AT = 1.1, 256  # memory over that of eager steps which captured ones may take, and in which batch
_CLASSES = 1000
_BITWISE, _BOUNDED = "verified bit for bit", "verified within bounds"
_WARM_UP = 20  # more than it takes to make a graph
_STEPS = 20  # in one turn
_LR = 1e-3


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        batch: images in a batch.
        name: :data:`EAGER` or :data:`CAPTURED`.
        milliseconds: median time of a step on the device, waiting for the host included; ``None`` if it failed.
        spread: half of the distance between the quickest and the slowest turn, in milliseconds.
        ratio: median of its time over that of eager steps in the same turn; ``None`` if those failed.
        host_milliseconds: median time until the call of a step returns, which does not wait for the device.
        peak: bytes of device memory that CuPy's pool and that of the graph have had at most, while the graph was made
            included.
        held: bytes that they have in the end.
        memory: ``peak`` over that of eager steps; ``None`` if those failed.
        bound: what ``memory`` should not exceed, or ``None``.
        note: how a graph was verified, or why it failed.
    """

    batch: int
    name: str
    milliseconds: float | None = None
    spread: float | None = None
    ratio: float | None = None
    host_milliseconds: float | None = None
    peak: int | None = None
    held: int | None = None
    memory: float | None = None
    bound: float | None = None
    note: str = ""


def measure(network, *, batches=(32, 64, 128, 256), size=224, repeats=15):
    """Times training steps of a converted classifier in float16 on the first GPU, where its images are already.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images
            (N, 3, size, size) to logits.
        batches: numbers of images in a batch.
        size: height and width of an image in pixels.
        repeats: number of timed turns of twenty steps; one more is run before.

    Returns:
        ``(rows, settings)``: a list of :class:`Row`, and a dict with the GPU's name. Without a GPU there are no rows,
        and ``settings`` says why.
    """
    specifier, reason = environment.resolve_device("auto")
    if specifier == "@numpy":
        return [], {"missing": reason.removeprefix("CPU: ")}
    rows = [row for batch in batches for row in _compare(network, specifier, batch, size, repeats)]
    return rows, {"device": reason}


def table(rows, found):
    """Returns what :func:`measure` found as an aligned text table, or as the line that says why there is none."""
    if "missing" in found:
        return f"step time, host time of a graph and peak memory need a GPU: {found['missing']}"
    lines = [
        found["device"],
        f"{'':22}{'ms a step':>10}{'+-':>8}{'ratio':>7}{'images/s':>10}{'host ms':>9}"
        f"{'peak MB':>9}{'held MB':>9}{'ratio':>7}{'bound':>7}",
    ]
    return "\n".join([*lines, *map(_line, rows)])


def as_json(rows, found):
    """Returns what :func:`measure` found as a dict for JSON."""
    return {**found, "rows": [dataclasses.asdict(row) for row in rows]}


def _compare(network, specifier, batch, size, repeats):
    """Measures both contestants; returns their rows."""
    with Worker() as tuning:
        tuning.attempt(_prepare, EAGER, network, specifier, batch, size)
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in (EAGER, CAPTURED)}
        failed = {
            name: own.attempt(_prepare, name, network, specifier, batch, size)[1] for name, own in workers.items()
        }
        turns = {name: functools.partial(own.call, _turn) for name, own in workers.items() if not failed[name]}
        times = contestants.take_turns(turns, repeats, lambda turn: turn())
        ends = {name: workers[name].call(_end) for name in turns}
    return [row_of(batch, name, times, ends, why) for name, why in failed.items()]


def row_of(batch, name, times, ends, why):
    """Returns the row of a contestant.

    Args:
        batch: images in a batch.
        name: of the contestant.
        times: dict from names to lists of ``(seconds of a step, seconds of the host)``, one for each turn.
        ends: dict from names to ``(peak, held, note)``, see :class:`Row`.
        why: why the contestant has failed, or ``""``.
    """
    if why:
        return Row(batch, name, note=why)
    seconds, host_seconds = zip(*times[name], strict=True)
    peak, held, note = ends[name]
    ratio = memory = None
    if EAGER in times:
        ratio = statistics.median(own / other for own, (other, _) in zip(seconds, times[EAGER], strict=True))
        memory = peak / ends[EAGER][0]
    bound = BOUND if name == CAPTURED and batch == BOUND_AT else None
    median, spread = statistics.median(seconds), (max(seconds) - min(seconds)) / 2
    host_median = statistics.median(host_seconds)
    return Row(batch, name, median * 1e3, spread * 1e3, ratio, host_median * 1e3, peak, held, memory, bound, note)


def _line(row):
    name = f"  {f'batch {row.batch}, {row.name}':20}"
    if row.milliseconds is None:
        return f"{name}  {row.note}"
    ratio, memory, bound = ("" if each is None else f"{each:.2f}" for each in (row.ratio, row.memory, row.bound))
    return (
        f"{name}{row.milliseconds:10.2f}{row.spread:8.2f}{ratio:>7}{row.batch / row.milliseconds * 1e3:10.0f}"
        f"{row.host_milliseconds:9.2f}{row.peak / 1e6:9.0f}{row.held / 1e6:9.0f}{memory:>7}{bound:>7}  {row.note}"
    ).rstrip()


# What runs in the process of a contestant

_contestant = []


def _prepare(*arguments):
    """Makes the :class:`Contestant`."""
    _contestant[:] = [Contestant(*arguments)]


def _turn():
    return _contestant[0].turn()


def _end():
    return _contestant[0].end()


class Contestant:
    """Training on a GPU of one process, as :func:`measure` says; it runs until nothing is new any more.

    Args:
        name: :data:`EAGER` or :data:`CAPTURED`.
        network: see :func:`measure`.
        specifier: of the device.
        batch: images in a batch.
        size: height and width of an image in pixels.

    Raises:
        mixprec.graph_capture.CaptureError: the step cannot be captured.
    """

    def __init__(self, name, network, specifier, batch, size):
        chainer.global_config.autotune = True
        self._device = chainer.get_device(specifier)
        self._device.use()
        images = np.random.RandomState(0).normal(size=(batch, 3, size, size)).astype(np.float32)
        x, t = map(self._device.send, (images, np.arange(batch, dtype=np.int32) % _CLASSES))
        self._graphs = graphs_of(x)
        self._peak = peak_of(self._device.xp.cuda.MemoryHook, self._held)
        self._peak.__enter__()  # until the process ends
        model = L.Classifier(network(_CLASSES))
        mixprec.convert(model, images[:2])
        model.to_device(self._device)
        optimizer = capture.optimizer_of(model, lr=_LR, init_scale=2.0**16)
        self._captured = None
        update = functools.partial(optimizer.update, model)
        if name == CAPTURED:
            update = self._captured = mixprec.capture(optimizer, required=True)
        self._step = functools.partial(update, x, t)
        for _ in range(_WARM_UP):
            self._step()
        if self._captured is not None and not self._captured.replays:
            raise RuntimeError(f"no graph was launched in {_WARM_UP} steps: {self._captured.report()}")

    def turn(self):
        """Returns the seconds of a step, and those until its call returns."""
        return gpu.seconds(self._device, self._step, _STEPS), self._host_seconds()

    def end(self):
        """Returns the most bytes that memory pools have had, those that they have, and how a graph was verified."""
        verified = "" if self._captured is None else _BITWISE if settings.current().deterministic else _BOUNDED
        return self._peak.bytes, self._held(), verified

    def _host_seconds(self):
        seconds = []
        for _ in range(_STEPS):
            self._device.xp.cuda.Device().synchronize()  # a full queue would hold up the host
            before = time.perf_counter()
            self._step()
            seconds.append(time.perf_counter() - before)
        return statistics.median(seconds)

    def _held(self):
        return self._device.xp.get_default_memory_pool().total_bytes() + self._graphs.pool_bytes
