"""Calibration: the distribution of a tensor's values in a network, and the range that 8 bits represent.

onnxruntime's calibrators need the outputs of all layers for all images at a time, or give other histograms for other
batches; their entropy has as many bins as quantized values by default, and then it never clips. So the histograms here
are our own: two passes over the images, one image at a time, and memory for one image.
"""

import dataclasses

import numpy as np

from mixprec.base.messages import OneLineError
from mixprec.export.sessions import session

BINS = 2048
LEVELS = 128  # one sign bit and 7 bits
PERCENTILE = 99.99  # of NVIDIA's toolkit, pytorch_quantization.calib.HistogramCalibrator: clips one value of 10,000
METHODS = ("minmax", "percentile", "entropy")  # the first is chosen if all are equal

_ROUNDING = 1e-12  # of relative entropies
_FEWEST = 8
_HELD_OUT = 4  # one image of so many


class Images:
    """The images of a calibration, one at a time.

    Every fourth image is held out, independent of batches: images that are sorted by class are in both parts.

    Args:
        batches: an iterable of float32 arrays ``(N, ...)``, or a function that returns one. It is iterated over more
            than once, and must give the same images each time.

    Attributes:
        count (int or None): number of images, known after the first pass.

    Raises:
        OneLineError: during iteration: there are fewer than eight images, two passes had different numbers of images,
            or a value is not finite.
    """

    def __init__(self, batches):
        self._batches = batches
        self.count = None

    def calibration(self):
        """Yields arrays ``(1, ...)``: three quarters of the images."""
        return (image for index, image in self._numbered() if index % _HELD_OUT != _HELD_OUT - 1)

    def held_out(self):
        """Yields arrays ``(1, ...)``: every fourth image."""
        return (image for index, image in self._numbered() if index % _HELD_OUT == _HELD_OUT - 1)

    @property
    def held_out_count(self):
        return self.count // _HELD_OUT

    def _numbered(self):
        count = 0
        for batch in self._batches() if callable(self._batches) else self._batches:
            for index in range(len(batch)):
                image = batch[index : index + 1]
                if not np.isfinite(image).all():
                    raise OneLineError(f"calibration: a value of image {count} is not finite")
                yield count, image
                count += 1
        if self.count not in (None, count):
            raise OneLineError(f"calibration: {self.count} images in the first pass, {count} in a later pass")
        if count < _FEWEST:
            raise OneLineError(f"calibration: found {count} images, needs at least {_FEWEST}")
        self.count = count


@dataclasses.dataclass
class Statistics:
    """The values of a tensor in all images.

    Attributes:
        lowest (float): the smallest value.
        highest (float): the largest value.
        counts (numpy.ndarray): histogram of the absolute values, int64, shape ``(2048,)``; the last bin ends at
            :attr:`largest`.
    """

    lowest: float = np.inf
    highest: float = -np.inf
    counts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(BINS, np.int64))

    @property
    def largest(self):
        """The largest absolute value."""
        return max(abs(self.lowest), abs(self.highest))

    def widen(self, array):
        """Updates the extremes by the values of ``array``."""
        self.lowest, self.highest = min(self.lowest, float(array.min())), max(self.highest, float(array.max()))

    def count(self, array):
        """Adds the values of ``array``, a float32 array within the extremes, to the histogram."""
        shares = np.abs(array, dtype=np.float32).ravel()
        if self.largest > 0:
            shares /= np.float32(self.largest)
        bins = np.minimum((shares * BINS).astype(np.intp), BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)

    def limits(self, method):
        """Returns the lowest and the highest value that are not clipped.

        Args:
            method (str): ``'minmax'`` clips nothing; ``'percentile'`` and ``'entropy'`` clip the absolute value at
                :func:`percentile_threshold` or :func:`entropy_threshold`.
        """
        if method == "minmax" or self.largest == 0:
            return self.lowest, self.highest
        bins = {"percentile": percentile_threshold, "entropy": entropy_threshold}[method](self.counts)
        threshold = self.largest * bins / BINS
        return max(self.lowest, -threshold), min(self.highest, threshold)


def percentile_threshold(counts, percentile=PERCENTILE):
    """Returns the number of bins of a histogram that hold at least ``percentile`` percent of the values.

    Args:
        counts (numpy.ndarray): histogram of absolute values.
        percentile (float): 0 to 100.
    """
    reached = np.cumsum(counts)
    return int(np.searchsorted(reached, percentile / 100 * reached[-1])) + 1


def entropy_threshold(counts):
    """Returns the number of bins of a histogram to keep so that 128 levels lose the least information.

    It minimizes the relative entropy (Kullback-Leibler divergence) between the values, with clipped ones counted in the
    last bin, and the same values quantized to 128 levels: S. Migacz, "8-bit Inference with TensorRT", GTC 2017. Two
    details follow NVIDIA's own program, ``pytorch_quantization.calib.histogram``: the count of the first bin is
    replaced by the count of the second, since the zeros of ReLU are exact at any scale; and among equal minima the
    largest number of bins is chosen.

    Args:
        counts (numpy.ndarray): histogram of absolute values, with more than 128 bins.
    """
    counts = np.array(counts, np.float64)
    counts[0] = counts[1]
    # A row for each number of bins that are kept, a column for each level: bins starts[:, k] to starts[:, k + 1].
    kept = np.arange(LEVELS, len(counts) + 1)
    starts = -(-np.arange(LEVELS + 1) * kept[:, None] // LEVELS)
    sums, filled = (np.diff(_up_to(values)[starts]) for values in (counts, counts > 0))
    total, kept_sum, last = counts.sum(), _up_to(counts)[kept], counts[kept - 1]
    clipped = total - kept_sum
    # sum(p * log(p / q)) with p = reference / total and q = quantized / kept_sum, where the reference is counts with
    # clipped in its last bin, and quantized is sums / filled in all filled bins of a level.
    mean = _log(sums) - _log(filled)
    reference = _up_to(counts * _log(counts))[kept] - last * _log(last) + (last + clipped) * _log(last + clipped)
    quantized = (sums * mean).sum(1) + clipped * mean[:, -1]
    divergence = (reference - quantized) / total + np.log(np.maximum(kept_sum, 1) / total)
    divergence[(last == 0) & (clipped > 0)] = np.inf  # no level represents the clipped values
    return int(kept[divergence <= divergence.min() + _ROUNDING][-1])


def _up_to(values):
    """Sums of the first 0, 1, 2, ... values."""
    return np.concatenate([[0], np.cumsum(values)])


def _log(values):
    """Logarithms; 0 for 0, as they are multiplied by the argument."""
    return np.log(np.where(values > 0, values, 1))


def collect(model, names, images, progress):
    """Runs a network on the images of the calibration, and collects the values of its tensors.

    Args:
        model (onnx.ModelProto): with the types of all tensors in ``value_info``.
        names (list of str): tensors, float32; each is an output of a node, or the input of the graph.
        images (Images): iterated over twice.
        progress: called with a word and the number of images, after each image.

    Returns:
        dict: from name to :class:`Statistics`.

    Raises:
        OneLineError: a tensor has a value that is not finite.
    """
    source = model.graph.input[0].name
    computed = [name for name in names if name != source]
    computer = _session_with(model, computed)
    statistics = {name: Statistics() for name in names}

    def arrays(step):
        for done, image in enumerate(images.calibration(), start=1):
            # The input is not requested as an output: onnxruntime would return the memory that it was given, issue
            # 21922.
            values = computer.run(computed, {source: image}) if computed else []
            yield from zip(computed, values, strict=True)
            if source in statistics:
                yield source, image
            progress(step, done)

    for name, array in arrays("ranges"):
        statistics[name].widen(array)
        if not np.isfinite(statistics[name].largest):
            raise OneLineError(f"calibration: a value of {name} is not finite")
    for name, array in arrays("histograms"):
        statistics[name].count(array)
    return statistics


def _session_with(model, names):
    """A session that also returns these tensors."""
    graph = model.graph
    before = len(graph.output)
    there = {output.name for output in graph.output}
    graph.output.extend(info for info in graph.value_info if info.name in set(names) - there)
    try:
        return session(model)
    finally:
        del graph.output[before:]
