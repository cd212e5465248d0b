"""Images a second on a GPU: the loader alone, training on images that are there already, and both together.

Training is a captured step of a converted classifier in float16. Each row lives in a process of its own.
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
from benchmarks import compared_optimizers
from benchmarks.compared_loaders import AUGMENTATION, SIZE
from benchmarks.processes import Worker
from mixprec import environment
from mixprec.data.loaders.batch import to_nchw
from mixprec.data.loaders.dali import DaliIterator
from mixprec.data.loaders.synthetic import SyntheticIterator

ALONE, SYNTHETIC, BOTH = "DaliIterator alone", "training, synthetic images", "training, DaliIterator"
_CLASSES = 1000
_WARM_UP = 20  # more than it takes to make a graph
_BATCHES = 50  # in one turn
_LR = 1e-3


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: :data:`ALONE`, :data:`SYNTHETIC` or :data:`BOTH`.
        rate: median of images a second; ``None`` if it failed.
        spread: half of the distance between the quickest and the slowest turn, in images a second.
        ratio: median of its rate over that of :data:`SYNTHETIC` in the same turn; ``None`` if that failed.
        note: why it failed.
    """

    name: str
    rate: float | None = None
    spread: float | None = None
    ratio: float | None = None
    note: str = ""


def measure(network, images, *, batch=256, threads=8, repeats=7):
    """Measures on the first GPU.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images
            (N, 3, 224, 224) to logits.
        images: a source of images, see :mod:`mixprec.data.sources.folders`; with at least ``batch`` of them.
        batch: images in a batch.
        threads: DALI's CPU threads.
        repeats: number of timed turns of fifty batches; one more is run before.

    Returns:
        ``(rows, settings)``: a list of :class:`Row`, and a dict with the GPU's name. Without a GPU there are no rows,
        and ``settings`` says why.
    """
    specifier, reason = environment.resolve_device("auto")
    if specifier == "@numpy":
        return [], {"missing": reason.removeprefix("CPU: ")}
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in (ALONE, SYNTHETIC, BOTH)}
        failed = {
            name: own.attempt(_prepare, name, network, images, specifier, batch, threads)[1]
            for name, own in workers.items()
        }
        turns = {name: functools.partial(own.call, _turn) for name, own in workers.items() if not failed[name]}
        times = compared_optimizers.take_turns(turns, repeats, lambda turn: turn())
    return [_row(name, times, why) for name, why in failed.items()], {"device": reason}


def table(rows, found):
    """Returns what :func:`measure` found as an aligned text table, or as the line that says why there is none."""
    if "missing" in found:
        return f"images/s of the loader and of training on a GPU were not measured: {found['missing']}"
    lines = [found["device"], f"{'':40}{'images/s':>10}{'+-':>8}{'over synthetic':>16}"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:16.3f}"
        numbers = row.note if row.rate is None else f"{row.rate:10.0f}{row.spread:8.0f}{ratio}"
        lines.append(f"  {row.name:38}{numbers}")
    return "\n".join(lines)


def as_json(rows, found):
    """Returns what :func:`measure` found as a dict for JSON."""
    return {**found, "rows": [dataclasses.asdict(row) for row in rows]}


def _row(name, times, why):
    if why:
        return Row(name, note=why)
    rates = [1 / seconds for seconds in times[name]]
    ratio = None
    if SYNTHETIC in times:
        ratio = statistics.median(base / own for own, base in zip(times[name], times[SYNTHETIC], strict=True))
    return Row(name, statistics.median(rates), (max(rates) - min(rates)) / 2, ratio)


# What runs in the process of a row

_prepared = []


def _prepare(*arguments):
    """Makes the :class:`MeasuredRow`."""
    _prepared[:] = [MeasuredRow(*arguments)]


def _turn():
    return _prepared[0].turn()


class MeasuredRow:
    """A loader, a training step, or both, on a GPU of one process; it runs until nothing is new any more.

    Args:
        name: :data:`ALONE`, :data:`SYNTHETIC` or :data:`BOTH`.
        network: see :func:`measure`.
        images: see :func:`measure`.
        specifier: of the device.
        batch: images in a batch.
        threads: DALI's CPU threads.

    Raises:
        mixprec.graph_capture.CaptureError: the step cannot be captured.
        DataError: DALI is missing, or cannot read the images.
    """

    def __init__(self, name, network, images, specifier, batch, threads):
        chainer.global_config.autotune = True
        self._device = chainer.get_device(specifier)
        self._device.use()
        self._batch = batch
        own = {"size": SIZE, "dtype": "float16", "seed": 0, "last_batch": "drop"}
        if name == SYNTHETIC:
            self._iterator = SyntheticIterator(batch, batch, classes=_CLASSES, device=self._device, **own)
        else:
            own |= {"train": True, "flip": True, "threads": threads, "device_id": self._device.device.id}
            self._iterator = DaliIterator(images, batch, **own, **AUGMENTATION)
        self._step = None if name == ALONE else self._captured(network)
        for _ in range(_WARM_UP):
            self._run()
        if self._step is not None and not self._step.replays:
            raise RuntimeError(f"no graph was launched in {_WARM_UP} steps: {self._step.report()}")

    def turn(self):
        """Returns the seconds that an image takes, until the GPU has done all that was asked of it."""
        self._device.xp.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(_BATCHES):
            self._run()
        self._device.xp.cuda.Device().synchronize()
        return (time.perf_counter() - start) / (_BATCHES * self._batch)

    def _run(self):
        batch = to_nchw(next(self._iterator), self._device)
        if self._step is not None:
            self._step(*batch)

    def _captured(self, network):
        model = L.Classifier(network(_CLASSES))
        mixprec.convert(model, np.zeros((2, 3, SIZE, SIZE), np.float32))
        model.to_device(self._device)
        return mixprec.capture(compared_optimizers.mixed_sgd(model, lr=_LR, init_scale=2.0**16), required=True)
