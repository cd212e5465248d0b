"""Compares exported files with Chainer on images: accuracy, equal predictions, differences, speed."""

import dataclasses
import statistics
import time

import chainer
import numpy as np

import mixprec

BATCH = 32
_SPEED_SECONDS = 1.0  # for each of the two batch sizes of a file


@dataclasses.dataclass
class Row:
    """What was found about a file, or about Chainer.

    Attributes:
        name: ``"Chainer"``, or the name of the file.
        accuracy: share of the images whose largest logit is that of their label.
        equal: share of the images with the same largest logit as Chainer's.
        difference: largest difference of a logit from Chainer's.
        largest: largest logit of Chainer's, in absolute value.
        size: bytes of the file; ``None`` for Chainer.
        speeds: images a second, by batch size; empty where the CPU is not what the file is for.
        limit: points of accuracy that it may be below the float32 file; ``None`` for no limit.
        drop: points that it is below it.
    """

    name: str
    accuracy: float = 0.0
    equal: float = 0.0
    difference: float = 0.0
    largest: float = 0.0
    size: int | None = None
    speeds: dict = dataclasses.field(default_factory=dict)
    limit: float | None = None
    drop: float = 0.0

    @property
    def is_good(self):
        """Whether the drop is within the limit, and all logits are finite."""
        return bool(np.isfinite(self.difference)) and (self.limit is None or self.drop <= self.limit + 1e-9)


class Candidate:
    """A file to be compared.

    Args:
        name: of the file.
        data: its bytes.
        run: function from the input, an array, to logits: what judges its accuracy.
        timed: such a function that is timed, ``None`` for none.
        takes_pixels: whether the input is pixels, uint8 (N, H, W, 3).
        limit: see :class:`Row`.
    """

    def __init__(self, name, data, run, timed, takes_pixels, limit):
        self.name, self.data, self.run, self.timed = name, data, run, timed
        self.takes_pixels, self.limit = takes_pixels, limit


def compare(network, candidates, images, progress):
    """Returns a :class:`Row` for Chainer and one for each candidate, of which the first is the float32 file.

    Args:
        network: plain Chainer link; Chainer's numbers are those of mixprec in float32, which are plain Chainer's but
            for rounding (:func:`mixprec.export.onnx` has compared with plain Chainer).
        candidates: list of :class:`Candidate`.
        images: :class:`~mixprec.export_run.validation_images.ValidationImages`.
        progress: called with the number of images after each batch.
    """
    reference = _converted(network)
    rows = [Row("Chainer"), *(Row(each.name, size=len(each.data), limit=each.limit) for each in candidates)]
    for pixels, labels in images.batches(BATCH):
        normalized = images.normalize(pixels)
        wanted = reference(normalized)
        for row, run, takes_pixels in [
            (rows[0], lambda x: wanted, False),  # noqa: B023
            *((row, each.run, each.takes_pixels) for row, each in zip(rows[1:], candidates, strict=True)),
        ]:
            _add(row, run(pixels if takes_pixels else normalized), wanted, labels)
        progress(len(labels))
    for row in rows:
        row.accuracy, row.equal = row.accuracy / len(images), row.equal / len(images)
    for row in rows[2:]:
        row.drop = 100 * (rows[1].accuracy - row.accuracy)
    _time(rows, [(reference, False), *((each.timed, each.takes_pixels) for each in candidates)], images)
    return rows


def _converted(network):
    network = network.copy(mode="share")
    model = chainer.Sequential(network)
    mixprec.convert(model, compute="float32")

    def run(x):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return model(x).array

    return run


def _add(row, logits, wanted, labels):
    found = logits.argmax(1)
    row.accuracy += int((found == labels).sum())
    row.equal += int((found == wanted.argmax(1)).sum())
    difference = np.abs(logits - wanted).max()
    row.difference = max(row.difference, float(difference) if np.isfinite(difference) else np.inf)
    row.largest = max(row.largest, float(np.abs(wanted).max()))


def _time(rows, functions, images):
    """Times all in turn, so that a drift of the machine hits them alike."""
    pixels = next(iter(images.batches(BATCH)))[0]
    for size in (1, BATCH):
        some = np.resize(pixels, (size, *pixels.shape[1:]))
        inputs = {True: some, False: images.normalize(some)}
        times = [[] for _ in rows]
        for turn in range(4):
            for (run, takes_pixels), taken in zip(functions, times, strict=True):
                if run is None:
                    continue
                begin, calls = time.perf_counter(), 0
                while not calls or time.perf_counter() - begin < _SPEED_SECONDS / 4:
                    run(inputs[takes_pixels])
                    calls += 1
                if turn:  # the first one is for caches and threads
                    taken.append((time.perf_counter() - begin) / calls)
        for row, taken in zip(rows, times, strict=True):
            if taken:
                row.speeds[size] = size / statistics.median(taken)
