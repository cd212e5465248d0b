"""scripts/benchmark.py primitives: the tables, and the floor of a primitive."""

import json

import numpy as np
import pytest

from benchmarks import primitives_gpu, primitives_speed
from benchmarks.recording_device.primitive_calls import Call, Spec
from benchmarks.step import by_hand
from mixprec.backends.geometry import BatchNorm, Convolution, Pooling
from scripts import benchmark
from tests.stand_ins import cuda_on_host

pytestmark = pytest.mark.slow

X, W = Spec((2, 6, 5, 16), "float16"), Spec((8, 3, 3, 16), "float16")
DY = Spec((2, 3, 3, 8), "float16")
CONVOLUTION = Convolution(stride=(2, 2), pad=(1, 1))
CHANNELS = Spec((16,), "float32")
PRODUCTS = 2 * (2 * 3 * 3 * 8) * (3 * 3 * 16)


def test_tables_and_the_same_numbers_as_json(tmp_path, capsys):
    small = ("--batch", "2", "--size", "32", "--repeats", "1", "--gpu-batch", "1")
    benchmark.main(["primitives", *small, "--json", str(tmp_path / "primitives.json")])
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "primitives.json").read_text())
    assert record["settings"] == {"batch": 2, "size": 32, "repeats": 1, "gpu_batch": 1}
    names = ["plain Chainer float32, NCHW", "mixprec.links float32, NHWC", "mixprec.links float16, NHWC"]
    assert [(row["name"], row["bound"]) for row in record["rows"]] == list(zip(names, (None, 1.0, 1.5), strict=True))
    for row in record["rows"]:
        assert f"{row['name']:30}{row['forward']:12.1f}{row['backward']:13.1f}" in printed
    assert ("missing" in record["gpu"]) == ("not measured on a GPU" in printed)


def test_ratios_are_of_medians():
    row = primitives_speed._row("mixprec.links float16, NHWC", [(1.0, 3.0), (2.0, 5.0), (9.0, 9.0)], base=3.5)
    assert row == primitives_speed.Row("mixprec.links float16, NHWC", 2000.0, 5000.0, 7000.0, 2.0, 1.5)


def test_calls_are_those_that_are_counted():
    calls = by_hand.calls("resnet18", batch=2, size=32)
    assert sum(call.name == "conv_fprop" for call in calls) == 20
    pooled = next(call for call in calls if call.name == "max_pool")
    pooling = Pooling((3, 3), (2, 2), (1, 1))
    assert pooled == Call("max_pool", (Spec((2, 16, 16, 64), "float16"), pooling), ())


@pytest.mark.parametrize(
    ("call", "result", "expected"),
    [
        (Call("conv_fprop", (X, W, CONVOLUTION, None), ()), np.empty((2, 3, 3, 8)), PRODUCTS),
        (Call("conv_dgrad", (DY, W, CONVOLUTION, X.shape), ()), np.empty(X.shape), PRODUCTS),
        (Call("conv_wgrad", (X, DY, CONVOLUTION, W.shape), ()), np.empty(W.shape), PRODUCTS),
        (Call("linear", (Spec((4, 6), "float16"), Spec((5, 6), "float16")), ()), np.empty((4, 5)), 2 * 4 * 5 * 6),
        (Call("linear_dgrad", (Spec((4, 5), "float16"), Spec((5, 6), "float16")), ()), None, 2 * 4 * 5 * 6),
        (Call("linear_wgrad", (Spec((4, 6), "float16"), Spec((4, 5), "float16")), ()), None, 2 * 4 * 5 * 6),
        (Call("cast", (X, np.dtype("float32")), ()), None, 0),
    ],
)
def test_operations_of_products(call, result, expected):
    assert primitives_gpu.operations(call, result) == expected


@pytest.fixture(scope="module")
def cuda():
    return cuda_on_host.HostCuda()


def _row(cuda, call, rates):
    timed = []

    def time(step):
        timed.append(step())
        return 1e-3

    return primitives_gpu.row_of(call, 3, cuda, cuda_on_host.send, time, rates)


def test_the_floor_of_a_convolution_is_that_of_its_products_where_those_take_longer(cuda):
    row = _row(cuda, Call("conv_fprop", (X, W, CONVOLUTION, None), ()), (1e12, 1e6))
    assert (row.count, row.microseconds, row.limit) == (3, 1000.0, "operations")
    assert row.floor == pytest.approx(PRODUCTS)
    assert row.engine not in ("", "own")
    assert row.shapes == "2x6x5x16 8x3x3x16"


def test_the_floor_of_a_batch_normalization_is_that_of_all_its_arrays(cuda):
    running = CHANNELS, CHANNELS
    call = Call("batch_norm", (X, CHANNELS, CHANNELS, running, BatchNorm(relu=True)), (("add", None), ("sums", None)))
    row = _row(cuda, call, (1e6, 1e12))
    assert row.limit == "bytes"
    assert row.floor == pytest.approx(2 * (2 * 6 * 5 * 16) * 2 + 6 * 16 * 4)  # x and y; what is per channel, both ways


def test_own_kernels_are_called_own(cuda):
    assert _row(cuda, Call("global_average_pool", (X,), ()), (1e6, 1e12)).engine == "own"


def test_a_primitive_that_fails_is_a_row_with_the_reason(cuda):
    row = _row(cuda, Call("linear", (X, W), ()), (1e6, 1e12))
    assert row.microseconds is None
    assert row.note
    settings = {"device": "GPU", "copy_gigabytes_per_second": 1.0, "product_teraflops": 1.0}
    good = _row(cuda, Call("global_average_pool", (X,), ()), (1e6, 1e12))
    table = primitives_gpu.table([row, good], settings)
    assert row.note in table
    assert f"{3 * good.floor / 3000:7.2f}" in table.splitlines()[-1]
