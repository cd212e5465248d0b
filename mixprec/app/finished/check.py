"""Compares exported files with mixprec in FP32 on images: accuracy, equal predictions, differences, speed."""

import dataclasses
import statistics
import time

import chainer
import numpy as np

from mixprec.rewrite import convert

BATCH = 32
MIXPREC = "mixprec FP32"
_SPEED_SECONDS = 1.0  # for each of the two batch sizes of a file


@dataclasses.dataclass
class Row:
    """The measurements of a file, or of the network in mixprec.

    Attributes:
        name: ``"mixprec FP32"``, or the name of the file.
        accuracy: share of the images whose largest logit belongs to their label.
        equal: share of the images with the same largest logit as mixprec's.
        difference: largest difference of a logit from mixprec's.
        largest: largest logit of mixprec's, in absolute value.
        size: bytes of the file; ``None`` for mixprec.
        speeds: images per second, by batch size; empty if the file is not meant for CPUs.
        limit: percentage points of accuracy that it may be below the float32 file; ``None`` for no limit.
        drop: percentage points that it is below the float32 file.
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
    def is_finite(self):
        """Whether all logits are finite, also mixprec's."""
        return bool(np.isfinite(self.difference))

    @property
    def is_good(self):
        """Whether the drop is within the limit, and all logits are finite."""
        return self.is_finite and (self.limit is None or self.drop <= self.limit + 1e-9)


class Candidate:
    """A file to be compared.

    Args:
        name: name of the file.
        data: its bytes.
        run: function from the input, an array, to logits.
        is_timed: whether its speed is meaningful.
        takes_pixels: whether the input is pixels, uint8 (N, H, W, 3).
        limit: see :class:`Row`.
    """

    def __init__(self, name, data, run, is_timed, takes_pixels, limit):
        self.name, self.data, self.run, self.is_timed = name, data, run, is_timed
        self.takes_pixels, self.limit = takes_pixels, limit


def compare(network, candidates, images, progress):
    """Returns a :class:`Row` for mixprec and one for each candidate, of which the first is the float32 file.

    Args:
        network: plain Chainer link; mixprec computes it in float32. This equals plain Chainer up to rounding, and is
            faster; :func:`mixprec.export.onnx` has compared the float32 file with plain Chainer.
        candidates: list of :class:`Candidate`.
        images: :class:`~mixprec.app.finished.validation_images.ValidationImages`.
        progress: called with the number of images after each batch.
    """
    own = Candidate(MIXPREC, b"", in_float32(network), is_timed=True, takes_pixels=False, limit=None)
    rows = [Row(MIXPREC), *(Row(each.name, size=len(each.data), limit=each.limit) for each in candidates)]
    for pixels, labels in images.batches(BATCH):
        normalized = images.normalize(pixels)
        wanted = own.run(normalized)
        _add(rows[0], wanted, wanted, labels)
        for row, each in zip(rows[1:], candidates, strict=True):
            _add(row, each.run(pixels if each.takes_pixels else normalized), wanted, labels)
        progress(len(labels))
    for row in rows:
        row.accuracy, row.equal = row.accuracy / len(images), row.equal / len(images)
    for row in rows[2:]:
        row.drop = 100 * (rows[1].accuracy - row.accuracy)
    _time([pair for pair in zip(rows, [own, *candidates], strict=True) if pair[1].is_timed], images)
    return rows


def in_float32(network, device="@numpy"):
    """Returns a function from images (N, 3, H, W) to logits (N, classes), as mixprec computes a network in float32.

    Both are float32 arrays on the host.

    Args:
        network: plain Chainer link on the CPU; it stays as it is.
        device: specifier of the device that computes, as for :func:`chainer.get_device`.
    """
    network, device = network.copy(mode="share"), chainer.get_device(device)
    model = chainer.Sequential(network).to_device(device)
    convert(model, compute="float32")

    def run(x):
        with chainer.using_device(device), chainer.using_config("train", False), chainer.no_backprop_mode():
            return chainer.get_device("@numpy").send(model(device.send(x)).array)

    return run


def _add(row, logits, wanted, labels):
    found = logits.argmax(1)
    row.accuracy += int((found == labels).sum())
    row.equal += int((found == wanted.argmax(1)).sum())
    with np.errstate(invalid="ignore"):  # infinity less infinity
        row.difference = max(row.difference, _largest(logits - wanted))
    row.largest = max(row.largest, _largest(wanted))


def _largest(array):
    largest = float(np.abs(array).max())
    return largest if np.isfinite(largest) else np.inf


def _time(timed, images):
    """Times the candidates of pairs of a row and one in turn, so that a drift of the machine hits all alike."""
    pixels = next(iter(images.batches(BATCH)))[0]
    for size in (1, BATCH):
        some = np.resize(pixels, (size, *pixels.shape[1:]))
        inputs = {True: some, False: images.normalize(some)}
        times = [[] for _ in timed]
        for turn in range(4):
            for (_, each), taken in zip(timed, times, strict=True):
                begin, calls = time.perf_counter(), 0
                while not calls or time.perf_counter() - begin < _SPEED_SECONDS / 4:
                    each.run(inputs[each.takes_pixels])
                    calls += 1
                if turn:  # the first one is for caches and threads
                    taken.append((time.perf_counter() - begin) / calls)
        for (row, _), taken in zip(timed, times, strict=True):
            row.speeds[size] = size / statistics.median(taken)
