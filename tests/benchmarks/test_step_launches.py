"""What single launches move; whole networks stand beside their counts, in test_step_counts.py."""

import numpy as np
import pytest

from benchmarks.profile import kinds
from benchmarks.recording_device import null_device
from benchmarks.recording_device.arrays import Array
from benchmarks.recording_device.launcher import Address
from benchmarks.step import launches
from benchmarks.step.launches import CONVERSION, COPY, STRIDED, Launch, totals
from mixprec.backends import primitives_of
from mixprec.backends.cudnn.operation import Operation, Tensor
from mixprec.backends.device_log import Record, recording
from mixprec.backends.geometry import BatchNorm, Normalized

pytestmark = pytest.mark.slow

IMAGES, SHAPE = 2, (2, 4, 4, 16)
SIZE = 2 * 4 * 4 * 16  # bytes of an image


@pytest.fixture
def device():
    """The primitives of the device that computes nothing, and a function that makes arrays on it."""
    null_device.install()
    launcher = null_device.Launcher()
    return primitives_of(launcher.empty((1,), np.float16)), launcher.empty


def _launches(notes):
    return launches.launches_of(notes, IMAGES, None)


def _of_kernels(device, monkeypatch, run):
    """Launches of a primitive whose batch normalization has no engine of cuDNN."""
    monkeypatch.setattr(null_device.CudnnContext, "supports", lambda *_: False)
    with recording() as notes:
        run(*device)
    return _launches(notes)


@pytest.mark.parametrize("add", [False, True])
def test_batch_normalization_by_own_kernels(device, monkeypatch, add):
    """Two passes in each direction, each a launch; one between them would move next to nothing."""
    mask = SIZE / 16 if add else 0

    def run(primitives, empty):
        x, other, gamma = empty(SHAPE, np.float16), empty(SHAPE, np.float16), empty((16,), np.float32)
        attributes = BatchNorm(relu=True)
        _, saved = primitives.batch_norm(x, gamma, gamma, None, attributes, add=other if add else None)
        primitives.batch_norm_backward(other, x, gamma, gamma, saved, attributes, add=add)

    found = [launch for launch in _of_kernels(device, monkeypatch, run) if launch.bytes]
    assert [launch.bytes for launch in found[:2]] == [SIZE, (2 + add) * SIZE + mask]
    assert [launch.again for launch in found[:3]] == [0, SIZE, 0]
    # The mask is read by both launches, or by the first one, which then writes what the second one reads for dy.
    assert 0 <= (5 + add) * SIZE + 2 * mask - found[2].bytes - found[3].bytes <= mask
    assert 0 <= 2 * SIZE + mask - found[3].again <= mask
    assert [launch.kind for launch in found] == [kinds.BN_FORWARD] * 2 + [kinds.BN_BACKWARD] * 2


def test_two_batch_normalizations_that_are_added(device, monkeypatch):
    """Forward a pass, and backward two, the second of which reads both inputs again. Sums (2, C) are not counted."""

    def run(primitives, empty):
        x, other, dy, plus = (empty(SHAPE, np.float16) for _ in range(4))
        gamma, sums = empty((16,), np.float32), empty((2, 16), np.float32)
        one = Normalized(x, gamma, gamma, None, BatchNorm(relu=True), sums)
        two = Normalized(other, gamma, gamma, None, BatchNorm(), sums)
        _, saved = primitives.dual_batch_norm(one, two)
        primitives.dual_batch_norm_backward(dy, one, two, saved, plus=plus)

    found, mask = _of_kernels(device, monkeypatch, run), SIZE / 16
    assert [(launch.bytes, launch.again) for launch in found] == [
        (3 * SIZE + mask, 0),
        (5 * SIZE + mask, 0),
        (5 * SIZE, 3 * SIZE),
    ]
    assert [launch.kind for launch in found] == [kinds.BN_FORWARD] + [kinds.BN_BACKWARD] * 2


def test_a_backward_pass_of_cudnn_reads_its_inputs_twice():
    tensors = {"dy": "float16", "x": "float16", "mask": "boolean"}
    operation = Operation(
        "batch_norm_backward",
        tuple(Tensor(name, SHAPE, dtype) for name, dtype in tensors.items()),
        (Tensor("dx", SHAPE, "float16"), Tensor("dgamma", (16,), "float32")),
    )
    (found,) = _launches([Record("cudnn", "batch_norm_backward", (operation, 1, 2), "batch_norm_backward")])
    mask = SIZE / 16
    assert found == Launch(kinds.BN_BACKWARD, "batch_norm_backward", 5 * SIZE + 2 * mask, 2 * SIZE + mask)


def test_the_second_launch_of_a_pair_reads_again_what_both_have():
    """Two batch normalizations at once: the gradient behind the ReLU is written by one launch and read by the other."""
    arrays = [np.empty(SHAPE, np.float16).view(Array) for _ in range(7)]
    dy, x, other, mask, gradient, dx, dother = map(Address, arrays)
    mask.nbytes = mask.nbytes // 16
    name = "dual_batch_norm_backward"
    notes = [
        Record("kernel", f"{name}_sums", (dy, x, other, mask, gradient), name),
        Record("kernel", f"{name}_apply", (gradient, x, other, dx, dother), name),
    ]
    sums, apply = _launches(notes)
    assert (sums.bytes, sums.again) == (4 * SIZE + SIZE / 16, 0)
    assert (apply.bytes, apply.again) == (5 * SIZE, 3 * SIZE)
    assert {sums.kind, apply.kind} == {kinds.BN_BACKWARD}


@pytest.mark.parametrize("name", ["dual_batch_norm", "batch_norm_max_pool"])
def test_the_kinds_of_fused_batch_normalizations(name):
    assert kinds.of_primitive(name) == kinds.BN_FORWARD
    assert kinds.of_primitive(f"{name}_backward") == kinds.BN_BACKWARD


def test_totals_and_their_table():
    """The least has no second passes, and no launches for sums of gradients."""
    known = [
        Launch(kinds.BN_FORWARD, "batch_norm", 3e6, again=1e6),
        Launch(kinds.GRADIENT_SUM, "add", 3e6),
        Launch(kinds.UPDATE, "update", fixed=650e6),
    ]
    seconds = {kinds.BN_FORWARD: 3e-3, kinds.GRADIENT_SUM: 2e-3, kinds.UPDATE: 1e-3, "nowhere": 5e-4}
    lines = launches.table(totals(known, 256), 256, seconds).splitlines()
    assert [line.split()[-4:] for line in lines] == [
        *(["256", "least", "ms,", "modelled"], ["1", "0.77", "0.51", "3.00"], ["1", "0.77", "0.00", "2.00"]),
        *(["1", "0.65", "0.65", "1.00"], ["0", "0.00", "0.00", "0.50"], ["3", "2.19", "1.16", "6.50"]),
    ]


def test_functions_of_arrays_that_do_not_read_in_the_order_of_memory(device):
    """CuPy's kernels go through the elements in the order of the axes."""
    _, empty = device
    dense = empty((2, 16, 4, 4), np.float16)
    across = empty(SHAPE, np.float16).transpose(0, 3, 1, 2)
    with recording() as notes:
        np.multiply(dense, 2, out=dense)
        np.multiply(across, 2, out=dense)
        dense.copy()
        np.add(across, across, out=dense)
    found = _launches([note for note in notes if note.kind == "array"])
    assert [launch.kind for launch in found] == [kinds.OTHER, STRIDED, COPY, kinds.GRADIENT_SUM]


def test_a_conversion_is_one_wherever_it_is_asked_for(device):
    primitives, empty = device
    with recording() as notes:
        primitives.to_nhwc(empty((2, 16, 4, 4), np.float16), np.dtype(np.float16))
    (found,) = _launches([note for note in notes if note.kind == "kernel"])
    assert (found.kind, found.bytes) == (CONVERSION, 2 * SIZE)


def test_convolutions_read_the_pixels_that_they_need(device):
    """A filter of 1x1 with stride 2: one of four."""
    operation = Operation(
        "conv_fprop",
        (Tensor("x", SHAPE, "float16"), Tensor("w", (8, 1, 1, 16), "float16")),
        (Tensor("y", (2, 2, 2, 8), "float16"),),
        (("stride", (2, 2)),),
    )
    (found,) = _launches([Record("cudnn", "conv_fprop", (operation,), "conv_fprop")])
    assert (found.bytes, found.fixed) == (SIZE / 4 + 2 * 2 * 8 * 2, 8 * 16 * 2)
    assert (found.operations, found.shapes) == (2 * 2 * 2 * 8 * 16, (SHAPE[1:], (8, 1, 1, 16)))
    assert found.moved(10) == 10 * found.bytes + found.fixed
