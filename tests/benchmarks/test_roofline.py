"""The roofline: the kernels of a training step at each level of fusion, and the least time that they take."""

import collections
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import rates
from benchmarks.roofline import fusible_layers, levels
from benchmarks.roofline.limit import assumptions, limit
from benchmarks.roofline.network_layers import layers
from benchmarks.roofline.roofline_tables import report
from models import MODELS
from tests.benchmarks import roofline_small as small

pytestmark = pytest.mark.slow

SMALL = layers(small.Small, small.SIZE)
H200 = rates.from_numbers(4300, 790)


@pytest.fixture(scope="module")
def resnet50():
    return layers(MODELS["resnet50"], 224)


def _bytes(network, level, dtype="float16", batch=256):
    """MB an image by kind of kernel."""
    counted = collections.Counter()
    for kernel in levels.kernels(network, level, dtype, batch):
        counted[kernel.kind] += kernel.bytes / batch / 1e6
    return counted


def test_flops_of_resnet50(resnet50):
    macs = 112**2 * 64 * 3 * 49 + 2048 * 1000
    c = 64
    for blocks, width, side in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for block in range(blocks):
            before = 2 if block == 0 and width > 64 else 1  # the 3x3 convolution has the stride
            macs += (before * side) ** 2 * c * width + side**2 * (9 * width * width + 4 * width * width)
            macs += side**2 * c * 4 * width * (block == 0)
            c = 4 * width
    assert macs == 4_089_184_256
    batch = 3
    found = levels.kernels(resnet50, "nhwc-fused", "float16", batch)
    assert sum(kernel.flops for kernel in found) == 2 * batch * (3 * macs - 112**2 * 64 * 3 * 49)
    assert resnet50.parameters == 25_557_032


@pytest.mark.parametrize("level", levels.LEVELS)
def test_kernels_of_a_small_network(level):
    found = levels.kernels(SMALL, level, "float16", small.BATCH)
    assert [(kernel.kind, kernel.bytes) for kernel in found] == small.KERNELS[level]
    flops = {(kernel.group, kernel.kind): kernel.flops for kernel in found if kernel.flops}
    first, second, last = 2 * small.BATCH * 16 * 8 * 27, 2 * small.BATCH * 16 * 8 * 8, 2 * small.BATCH * 8 * 1000
    assert flops == {
        **{("conv1", f"convolution{product}"): first for product in ("", "_wgrad")},
        **{("conv2", f"convolution{product}"): second for product in ("", "_dgrad", "_wgrad")},
        **{("fc", f"linear{product}"): last for product in ("", "_dgrad", "_wgrad")},
    }


def test_in_float32_nothing_is_transposed_and_all_arrays_are_twice_as_large():
    half, single = (levels.kernels(SMALL, "nhwc", dtype, small.BATCH) for dtype in ("float16", "float32"))
    assert levels.kernels(SMALL, "nchw", "float32", small.BATCH) == single
    assert [kernel.bytes for kernel in single[:-2]] == [2 * kernel.bytes for kernel in half[:-2]]
    assert sum(kernel.bytes for kernel in single[-2:]) == 24 * SMALL.parameters


def test_a_stride_above_the_filter_leaves_out_pixels(resnet50):
    found = levels.kernels(resnet50, "nhwc", "float16", 1)
    read, written, filters = (2 * size for size in (256 * 28 * 28, 512 * 28 * 28, 256 * 512))
    whole = 2 * 256 * 56 * 56
    strided = [kernel.bytes for kernel in found if kernel.flops == 2 * 28 * 28 * 256 * 512 and kernel.group == "layer2"]
    assert strided.count(read + written + filters) == 2  # fprop and wgrad
    assert strided.count(whole + written + filters) == 1  # dgrad


@pytest.mark.parametrize("arch", ["resnet18", "resnet50", "resnext50_32x4d"])
def test_each_level_moves_fewer_bytes(arch):
    found = layers(MODELS[arch], 64)
    moved = [sum(_bytes(found, level).values()) for level in levels.LEVELS]
    assert moved == sorted(moved, reverse=True)
    assert len(set(moved)) == len(moved)


# The floor of ResNet-50 that an earlier study of the project computed, at 4.3 TB/s and 790 TFLOP/s: MB an image,
# kernels, images/s in batches of 256 and 32. It has the bytes of six transpositions for each convolution, and the
# gaps of two. At the last level it has 294 MB, 11052 and 9927 images/s, and moves what a dgrad need not that applies
# the ReLU as it takes the sums: the gradient of a shortcut, which is there already, and, at a projection, the reading
# of it for the sums of that, too.
STUDY = {
    "nchw": (729, 508, 5147, 4728),
    "nhwc": (472, 402, 7464, 6742),
    "nhwc-fused": (368, 288, 9136, 8286),
    "nhwc-conv-fused": (305, 236, 10653, 9644),
}


@pytest.mark.parametrize("level", STUDY)
def test_resnet50_is_near_the_earlier_study(resnet50, level):
    megabytes, count, large, small = STUDY[level]
    found = limit(resnet50, level, "float16", 256, H200)
    assert found.bytes / 256 / 1e6 == pytest.approx(megabytes, rel=0.005)
    assert found.images_per_second == pytest.approx(large, rel=0.01)
    more = 4 * 53 - 2 if level == "nchw" else 0  # transpositions; the first convolution has no dgrad
    assert found.kernels == count + more + 4
    found = limit(resnet50, level, "float16", 32, H200)
    assert found.images_per_second == pytest.approx(small, rel=0.04 if level == "nchw" else 0.006)


def test_the_last_level_saves_more_than_in_the_earlier_study(resnet50):
    found = limit(resnet50, "nhwc-all-fused", "float16", 256, H200)
    assert 0.92 * 294 < found.bytes / 256 / 1e6 < 294
    assert 1.06 * 11052 < found.images_per_second < 1.08 * 11052
    assert 1.05 * 9927 < limit(resnet50, "nhwc-all-fused", "float16", 32, H200).images_per_second < 1.06 * 9927


def test_bytes_of_resnet50_by_kind_are_those_of_the_earlier_study(resnet50):
    found = _bytes(resnet50, "nhwc-fused")
    convolutions = found["convolution"] + found["convolution_dgrad"] + found["convolution_wgrad"]
    assert found["batch_normalization_backward"] == pytest.approx(125, abs=1.5)
    assert found["batch_normalization"] == pytest.approx(79, abs=1)
    assert convolutions == pytest.approx(3 * 41, rel=0.02)
    assert found["gradient_sum"] == pytest.approx(34, abs=0.5)


def test_dgrad_takes_the_sums_of_all_but_two_normalizations(resnet50):
    """Those of the first, which is pooled, and of the last, which is averaged, remain."""
    found = fusible_layers.Fusion(resnet50.layers, pointwise=True, forward=True, backward=True)
    left = [unit.output for index, unit in found.normalizations.items() if index not in found.reduced]
    pooled = [layer.sources[0] for layer in resnet50.layers if layer.kind in ("max_pooling", "average_pooling")]
    assert left == pooled
    assert not found.summed


@pytest.mark.parametrize(("level", "dtype"), [("nhwc_fused", "float16"), ("nhwc", "float64")])
def test_levels_and_dtypes_that_are_none(level, dtype):
    with pytest.raises(ValueError, match="expected one of"):
        levels.kernels(SMALL, level, dtype, 1)


# Limits

LEVELS = st.sampled_from(list(levels.LEVELS))
DTYPES = st.sampled_from(["float32", "tf32", "float16", "bfloat16"])
NUMBERS = st.floats(0.1, 1e4)
BATCHES = st.integers(1, 1000)


@given(LEVELS, DTYPES, BATCHES, NUMBERS, NUMBERS, st.floats(1, 100))
def test_a_faster_device_is_never_slower(level, dtype, batch, bandwidth, flops, factor):
    def speed(*numbers):
        return limit(SMALL, level, dtype, batch, rates.from_numbers(*numbers)).images_per_second

    slow = speed(bandwidth, flops)
    assert speed(bandwidth * factor, flops) >= slow
    assert speed(bandwidth, flops * factor) >= slow


@given(LEVELS, DTYPES, BATCHES, NUMBERS, NUMBERS, st.floats(0.1, 10))
def test_without_gaps_time_is_inverse_to_the_rates(level, dtype, batch, bandwidth, flops, factor):
    slow, fast = (
        limit(SMALL, level, dtype, batch, rates.from_numbers(bandwidth * each, flops * each), gap=0)
        for each in (1, factor)
    )
    assert fast.seconds == pytest.approx(slow.seconds / factor)


@given(LEVELS, DTYPES, BATCHES, NUMBERS, NUMBERS)
def test_larger_batches(level, dtype, batch, bandwidth, flops):
    single, double, triple = (
        limit(SMALL, level, dtype, batch * times, rates.from_numbers(bandwidth, flops)) for times in (1, 2, 3)
    )
    assert triple.bytes - double.bytes == double.bytes - single.bytes
    assert triple.flops == 3 * single.flops
    assert single.kernels == double.kernels
    assert single.seconds < double.seconds < 2 * single.seconds
    assert double.images_per_second > single.images_per_second


def test_a_limit_is_the_sum_over_kernels_of_bytes_or_products_and_gaps():
    known = rates.Rates(1e3, {"float16": 1e4})
    found = limit(SMALL, "nhwc", "float16", small.BATCH, known, share=0.5, gap=10.0)
    kernels = levels.kernels(SMALL, "nhwc", "float16", small.BATCH)
    assert found.seconds == pytest.approx(sum(max(each.bytes / 1e3, each.flops / 5e3) + 10 for each in kernels))
    assert (found.bytes, found.kernels) == (sum(each.bytes for each in kernels), len(kernels))
    assert found.images_per_second == pytest.approx(small.BATCH / found.seconds)


def test_assumptions():
    assert assumptions("@numpy") == {"share": 1.0, "gap": 0.0, "transposes": False}
    assert assumptions("@cupy:0") == {"share": 0.7, "gap": 1e-6, "transposes": True}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_without_tensor_cores_nothing_is_transposed(dtype):
    assumed = assumptions("@numpy")
    assert limit(SMALL, "nchw", dtype, 2, H200, **assumed) == limit(SMALL, "nhwc", dtype, 2, H200, **assumed)
    found = report(small.Small, arch="", size=small.SIZE, batches=[2], dtype=dtype, rates=H200, **assumed)
    one, other = found.rows[:2]
    assert (one.level, other.level) == ("nchw", "nhwc")
    assert (one.bytes, one.kernels, one.milliseconds) == (other.bytes, other.kernels, other.milliseconds)
    parts = [[part for part in found.parts if part.level == level] for level in ("nchw", "nhwc")]
    assert [part.share for part in parts[0]] == [part.share for part in parts[1]]


@pytest.mark.parametrize("level", levels.LEVELS)
def test_tf32_moves_float32_and_multiplies_at_its_own_rate(level):
    assert levels.kernels(SMALL, level, "tf32", 2) == levels.kernels(SMALL, level, "float32", 2)
    known = rates.Rates(1e18, {"float32": 1e9, "tf32": 4e9})
    single, rounded = (limit(SMALL, level, dtype, 2, known, gap=0) for dtype in ("float32", "tf32"))
    assert single.seconds == pytest.approx(4 * rounded.seconds)


# The report


def test_report():
    found = report(small.Small, arch="small", size=small.SIZE, batches=[8, 2], dtype="float16", rates=H200)
    record = json.loads(json.dumps(found.as_json()))
    assert record["rates"]["bandwidth"] == 4.3e12
    assert {"date", "commit", "cpu"} <= record.keys()
    settings = {"arch": "small", "size": 4, "batches": [8, 2], "dtype": "float16", "parameters": SMALL.parameters}
    assert record["settings"] == settings | {"share": 0.7, "gap": 1e-6, "transposes": True}
    assert [(row["level"], row["batch"]) for row in record["rows"]] == [(n, b) for b in (8, 2) for n in levels.LEVELS]
    lines = found.table().splitlines()
    for row in record["rows"]:
        expected = limit(SMALL, row["level"], "float16", row["batch"], H200)
        assert row["images_per_second"] == expected.images_per_second
        assert row["milliseconds"] == pytest.approx(expected.seconds * 1e3)
        assert row["kernels"] == expected.kernels
        (line,) = [line for line in lines if line.startswith(f"  {row['level']} ")]
        assert f"{expected.images_per_second:11.0f}" in line
    for level in levels.LEVELS:
        groups = [group for group in record["groups"] if group["level"] == level]
        assert {group["group"] for group in groups} == {"conv1", "bn1", "conv2", "bn2", "fc", "update"}
        assert sum(group["share"] for group in groups) == pytest.approx(1)
        whole = limit(SMALL, level, "float16", 8, H200)
        assert sum(group["bytes"] for group in groups) == pytest.approx(whole.bytes / 8)
        assert sum(group["flops"] for group in groups) == pytest.approx(whole.flops / 8)
        for group in groups:
            (line,) = [line for line in lines if line.startswith(f"  {group['group']} ")]
            assert f"{group['bytes'] / 1e6:.2f}{group['share']:8.1%}" in line
