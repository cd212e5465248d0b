"""mixprec.export.calibration: which values 8 bits stand for."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs onnx and onnxruntime: pip install -e '.[export]'")
pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime: pip install -e '.[export]'")


from mixprec.base.messages import OneLineError
from mixprec.export import calibration
from mixprec.export.calibration import BINS, Images, Statistics, entropy_threshold, percentile_threshold


def numbered(number, size=4):
    """Batches of images whose only value is their number."""
    return [np.arange(start, min(start + size, number), dtype=np.float32)[:, None] for start in range(0, number, size)]


def of(array):
    statistics = Statistics()
    for part in (statistics.widen, statistics.count):
        for piece in np.array_split(np.asarray(array, np.float32), 3):
            part(piece)
    return statistics


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_each_fourth_image_is_held_out_wherever_batches_end(size):
    parts = Images(numbered(10, size))
    assert [image.shape for image in parts.calibration()] == [(1, 1)] * 8
    assert [int(image[0, 0]) for image in parts.calibration()] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert [int(image[0, 0]) for image in parts.held_out()] == [3, 7]
    assert (parts.count, parts.held_out_count) == (10, 2)


BAD_BATCHES = [
    (numbered(7), "found 7 images, needs at least 8"),
    ([], "found 0 images, needs at least 8"),
    ([*numbered(8), np.array([[np.nan]], np.float32)], "a value of image 8 is not finite"),
    ([*numbered(8), np.array([[0], [np.inf]], np.float32)], "a value of image 9 is not finite"),
]


@pytest.mark.parametrize(("batches", "message"), BAD_BATCHES)
def test_images_that_do_not_do(batches, message):
    with pytest.raises(OneLineError, match=f"^calibration: {message}$"):
        list(Images(batches).calibration())


def test_iterator_that_is_used_up_is_refused_in_the_second_pass():
    parts = Images(iter(numbered(8)))
    list(parts.calibration())
    with pytest.raises(OneLineError, match="8 images in the first pass, 0 in a later pass"):
        list(parts.held_out())


def test_histogram_is_numpys():
    values = np.random.RandomState(0).normal(size=10_000).astype(np.float32)
    statistics = of(values)
    assert (statistics.lowest, statistics.highest) == (values.min(), values.max())
    expected, _ = np.histogram(np.abs(values), BINS, (0, statistics.largest))
    assert statistics.counts.sum() == len(values)
    # A value at an edge may fall on the other side of it.
    assert np.abs(np.cumsum(statistics.counts) - np.cumsum(expected)).max() <= 2
    assert statistics.counts[-1] >= 1


@pytest.mark.parametrize("method", calibration.METHODS)
@pytest.mark.parametrize("value", [0, 3, -3, 1e-42, 1e38])
def test_constant_tensor(value, method):
    lowest, highest = of(np.full(9, value)).limits(method)
    assert lowest == highest == np.float32(value)


def test_percentile_holds_its_share():
    values = np.random.RandomState(1).normal(size=100_000)
    lowest, highest = of(values).limits("percentile")
    assert -lowest == highest
    wanted = np.quantile(np.abs(values), 0.9999)
    width = np.abs(values).max() / BINS
    assert wanted <= highest <= wanted + width
    assert np.mean(np.abs(values) <= highest) >= 0.9999


@pytest.mark.parametrize(("percentile", "bins"), [(100, 4), (90, 3), (50, 1), (50.1, 2), (0, 1)])
def test_percentile_of_few_bins(percentile, bins):
    assert percentile_threshold(np.array([50, 30, 10, 10]), percentile) == bins


def slow_entropy_threshold(counts):
    """The algorithm of "8-bit Inference with TensorRT", GTC 2017, word by word, with a first bin like the second."""
    counts = [counts[1], *counts[1:]]
    divergences = {}
    for i in range(128, len(counts) + 1):
        reference = [float(count) for count in counts[:i]]
        reference[i - 1] += sum(counts[i:])
        levels = [[] for _ in range(128)]
        for j in range(i):
            levels[j * 128 // i].append(j)
        candidate = [0.0] * i
        for level in levels:
            filled = [j for j in level if counts[j]]
            for j in filled:
                candidate[j] = sum(counts[j] for j in level) / len(filled)
        p, q = np.array(reference) / sum(reference), np.array(candidate) / sum(candidate)
        if any((q == 0) & (p > 0)):
            divergences[i] = np.inf
        else:
            divergences[i] = sum(p[p > 0] * np.log(p[p > 0] / q[p > 0]))
    least = min(divergences.values())
    return max(i for i, divergence in divergences.items() if divergence <= least * (1 + 1e-12)), divergences


@pytest.mark.parametrize("kind", ["normal", "relu", "outliers", "gaps"])
def test_entropy_is_that_of_the_slow_form(kind):
    random = np.random.RandomState(2)
    values = np.abs(random.laplace(size=20_000))
    if kind == "relu":
        values = np.maximum(random.normal(size=20_000), 0)
    elif kind == "outliers":
        values[:5] *= 10
    elif kind == "gaps":
        values = np.round(values, 1)
    counts, _ = np.histogram(values, 300, (0, values.max()))
    found = entropy_threshold(counts)
    expected, divergences = slow_entropy_threshold(list(counts))
    assert divergences[found] == pytest.approx(divergences[expected], abs=1e-12)
    assert found == expected


def test_entropy_of_a_flat_histogram_keeps_all():
    assert entropy_threshold(np.full(BINS, 7)) == BINS
