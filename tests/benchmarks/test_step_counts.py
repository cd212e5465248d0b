"""Counts of a training step on the stand-in device: each number is the sum of what a network is made of."""

import collections
import json
import math
from typing import NamedTuple

import pytest

from benchmarks.profile import kinds
from benchmarks.roofline import levels
from benchmarks.roofline.network_layers import layers
from benchmarks.step import counts
from benchmarks.step.counts import Counts
from benchmarks.step.launches import CONVERSION, STRIDED
from models import MODELS

pytestmark = pytest.mark.slow

SMALL = {"arch": "resnet18", "batch": 4, "size": 32}
FULL = {"arch": "resnet50", "batch": 2, "size": 224}


FOLD = 2


class Network(NamedTuple):
    """What a network is made of. Each convolution has a batch normalization, and each block an addition.

    Batch normalizations are two own launches each way, which also add the gradients that meet where a block begins. The
    first convolution is one on folded images: a launch for these and one for the filter, both ways.
    """

    convolutions: int
    blocks: int
    relus: int
    params: int


# ResNet-18: 1 + 8 blocks of 2 + 3 shortcuts. ResNet-50: 1 + 16 blocks of 3 + 4 shortcuts.
# A filter and two of batch normalization for each convolution, and two of the last layer.
RESNET18 = Network(20, 8, 17, 3 * 20 + 2)
RESNET50 = Network(53, 16, 49, 3 * 53 + 2)


def _parts(network):
    """Returns how often a step of everything in float16 launches each primitive and function."""
    convolutions = network.convolutions
    layers = {"batch_norm": 2 * convolutions, "max_pool": 1, "global_average_pool": 1}
    layers |= {f"{name}_backward": number for name, number in layers.items()}
    layers |= {"conv_fprop": convolutions + FOLD, "conv_wgrad": convolutions + FOLD}
    layers["conv_dgrad"] = convolutions - 1  # none of the images
    layers |= {"linear": 1, "linear_dgrad": 1, "linear_wgrad": 1, "bias_grad": 1}
    loss = {"softmax_cross_entropy": 1, "mean_of_counted": 1, "softmax_cross_entropy_backward": 1}
    # The loss is multiplied by its scale in float32.
    sums = {"add": 1, "astype": 1, "multiply": 1}
    update = {"save": 1, "check": 1, "update": 1}  # running statistics are kept for a step that is skipped
    return layers | loss | sums | {"accuracy": 1} | update


STEP = _parts(RESNET18)
LAUNCHES = sum(STEP.values())
# Arguments go into the buffers of the graph; the loss, which is also what is reported, and the accuracy come out of it.
AROUND_A_GRAPH = {"setitem": 2, "copy": 2}


def _count(*overrides, config="nhwc_fused_batched.yaml"):
    return counts.counts_of([("it", config, overrides)], MODELS["resnet18"], **SMALL)["it"]


@pytest.fixture(scope="module")
def full():
    """A ResNet-50, eager on 224x224 pixels, and captured on few."""
    eager, captured = counts.WAYS
    found = counts.counts_of([eager], MODELS["resnet50"], **FULL)
    return found | counts.counts_of([captured], MODELS["resnet50"], **FULL | {"size": 32})


def test_a_fused_step(full):
    found = full[counts.EAGER]
    assert found.note == ""
    assert found.parts == _parts(RESNET50)
    assert found.launches == sum(found.parts.values()) == 392
    # What a schedule moves is uploaded with one copy; images come from the loader as the network wants them.
    assert (found.uploads, found.syncs, found.conversions, found.functions) == (1, 0, 0, 0)
    assert (found.graph_launches, found.in_graph) == (0, None)


def test_a_step_as_a_graph(full):
    found = full[counts.CAPTURED]
    assert found.parts == _parts(RESNET50) | AROUND_A_GRAPH
    assert (found.launches, found.graph_launches, found.in_graph) == (sum(AROUND_A_GRAPH.values()), 1, 392)
    assert (found.uploads, found.syncs, found.conversions, found.functions) == (1, 0, 0, 0)
    assert found.note == "392 launches in the graph"


def test_a_table_of_parts(full):
    lines = counts.parts_table(full[counts.EAGER]).splitlines()
    assert lines[-1].split() == ["all", "392"]
    assert ["conv_dgrad", "52"] in map(str.split, lines)


def test_without_fusion_additions_and_relus_are_launches_of_their_own():
    found = _count("model.fuse=false")
    relus, blocks = RESNET18.relus, RESNET18.blocks
    # The additions of two gradients are functions as well, in the place of those before a batch normalization.
    assert found.parts == STEP | {"relu": relus, "relu_backward": relus, "add": 2 * blocks}
    assert found.launches == LAUNCHES + 2 * relus + 2 * blocks - 1
    assert (found.uploads, found.syncs, found.conversions, found.functions) == (1, 0, 0, 0)


def test_in_float32_it_is_the_same_but_for_the_first_convolution():
    """Tensor cores, for which images are folded, have no float32."""
    found = _count("precision.compute=float32")
    convolutions = RESNET18.convolutions
    assert found.parts == STEP | {"conv_fprop": convolutions, "conv_wgrad": convolutions}
    assert (found.launches, found.note) == (LAUNCHES - 2 * FOLD, "")


def test_in_bfloat16_images_and_what_is_computed_in_float32_are_cast():
    """Loaders have no bfloat16. Nothing changes its layout."""
    found = _count("precision.compute=bfloat16")
    assert {name: number for name, number in found.parts.items() if name != "cast"} == {
        name: number for name, number in STEP.items() if name != "cast"
    }
    assert found.conversions == found.syncs == 0


def test_with_padded_channels_the_first_filter_gets_zeros_and_its_gradient_loses_them():
    found = _count("data.pad_channels=true")
    convolutions = RESNET18.convolutions + FOLD + 1
    assert found.parts == STEP | {"conv_fprop": convolutions, "conv_wgrad": convolutions}
    assert found.conversions == 0


def test_an_update_one_by_one_cannot_be_seen():
    found = _count("update.fused=false")
    assert found.launches is None
    assert found.note.endswith("whose launches cannot be seen: the update of parameters one by one")
    # More than one for each parameter, and no read of the loss scale.
    assert sum(found.parts.values()) > LAUNCHES + RESNET18.params
    assert (found.uploads, found.syncs, found.functions) == (0, 0, 0)
    assert found.conversions > RESNET18.params  # functions of filters, of which CuPy's go through their axes


def test_in_layout_nchw_functions_are_chainers_own():
    found = _count(config="fp32.yaml")
    convolutions, _, relus, _ = RESNET18
    forward = 2 * convolutions + relus + 3  # two poolings, and the last layer
    # Of the last layer there are gradients of inputs, weights and bias.
    backward = (convolutions - 1) + 2 * convolutions + relus + 2 + 3
    assert found.functions == forward + backward
    assert found.launches is found.syncs is found.uploads is found.conversions is None
    assert found.note.endswith("the functions of layout nchw")


@pytest.mark.parametrize("config", ["nhwc_fused_batched.yaml", "static_graph.yaml"])
def test_gradients_of_several_batches_are_added_as_they_lie_in_memory(config):
    """Once for each parameter. Nothing is turned around, neither filters nor images, and no gradient is copied."""
    found = _count("training.accumulation_steps=2", config=config)
    assert found.parts["conv_fprop"] == 2 * (RESNET18.convolutions + FOLD)
    assert found.parts["add"] >= RESNET18.params + 2
    assert found.conversions == 0
    assert not {"to_nhwc", "to_nchw"} & found.parts.keys()
    # Out of the graph come the loss, the mean that is reported, and the accuracy.
    assert found.parts.get("copy", 0) == (3 if config == "static_graph.yaml" else 0)


def test_what_fails_has_a_note():
    found = counts.counts_of([("no config", "none.yaml", [])], MODELS["resnet18"], **SMALL)["no config"]
    assert found.launches is None
    assert "none.yaml" in found.note


@pytest.fixture
def found():
    return {
        "seen": Counts(5, 1, 297, 1, 0, 0, 0, {"copy": 5}, "297 launches in the graph"),
        "not seen": Counts(functions=370, note="why"),
    }


def test_a_table(found):
    title, seen, unseen = counts.table(found).splitlines()
    assert title.split() == ["launches", "graphs", "uploads", "syncs", "conversions", "functions"]
    assert seen.split() == ["seen", "5", "1", "1", "0", "0", "0", "297", "launches", "in", "the", "graph"]
    assert unseen.split() == ["not", "seen", "-", "-", "-", "-", "-", "370", "why"]


def test_a_list_for_json(found):
    keys = {"name", "launches", "graph_launches", "uploads", "syncs", "conversions", "functions", "note"}
    rows = json.loads(json.dumps(counts.as_json(found)))
    assert [set(row) for row in rows] == [keys, keys]
    numbers = {"launches": 5, "graph_launches": 1, "uploads": 1, "syncs": 0, "conversions": 0, "functions": 0}
    assert rows[0] == {"name": "seen", **numbers, "note": "297 launches in the graph"}
    assert (rows[1]["launches"], rows[1]["functions"]) == (None, 370)


# --- what launches move


def test_the_step_moves_what_the_roofline_says(full):
    """ResNet-50: this is the place for numbers of the whole step. Nothing is converted, nothing read across memory."""
    found = full["captured"].kinds
    expected = collections.Counter()
    for kernel in levels.kernels(layers(MODELS["resnet50"], 32), "nhwc-fused", "float16", FULL["batch"]):
        expected[kernel.kind] += kernel.bytes
    # Images of 3 channels and filters of 7x7 become folded ones of 16 and 4x4, which are read in their place.
    fold = 2 * 2 * (FULL["batch"] * 16 * 16**2 + 64 * 16 * 4**2)
    normalized = [layer for layer in layers(MODELS["resnet50"], 32).layers if layer.kind == "batch_normalization"]
    x = [2 * FULL["batch"] * math.prod(layer.inputs[0]) for layer in normalized]
    # Where a convolution takes sums, all but the first do, nothing is read for statistics.
    of = {
        kinds.CONV_FPROP: (53 + FOLD, expected["convolution"] + fold),
        kinds.CONV_DGRAD: (52, expected["convolution_dgrad"]),
        kinds.CONV_WGRAD: (53 + FOLD, expected["convolution_wgrad"] + fold),
        kinds.BN_FORWARD: (2 * 53, expected["batch_normalization"] - sum(x) + x[0]),
    }
    assert {kind: (found[kind].launches, found[kind].bytes) for kind in of} == of
    # Gradients are added on the way, which reads one more array; masks are read once, one bit for 16 of an element.
    added = (expected["gradient_sum"] - found[kinds.GRADIENT_SUM].bytes) / 3
    masks = (added + 2 * FULL["batch"] * 2048) / 16
    assert found[kinds.BN_BACKWARD].bytes == expected["batch_normalization_backward"] + added - masks
    assert found[kinds.BN_BACKWARD].launches == 2 * 53
    assert found[kinds.POOLING].bytes == sum(moved for kind, moved in expected.items() if "pooling" in kind)
    # As many running statistics as scales and biases, read and written by `save`. The last bias has a master.
    assert found[kinds.UPDATE].bytes == expected["update"] + 2 * 4 * 53_120 + 1000 * (26 - 24)
    assert not {CONVERSION, STRIDED} & found.keys()
    assert found[kinds.GRADIENT_SUM].launches == 1
    assert sum(total.launches for total in found.values()) == sum(full["captured"].parts.values())


def test_passes_that_are_spared(full):
    """One over x forward in the first normalization; one over x and the gradient behind the ReLU backward."""
    found = full["captured"].kinds
    forward, backward = found[kinds.BN_FORWARD], found[kinds.BN_BACKWARD]
    assert forward.bytes - forward.least == 2 * FULL["batch"] * 64 * 16**2
    normalized = [layer for layer in layers(MODELS["resnet50"], 32).layers if layer.kind == "batch_normalization"]
    x = sum(2 * FULL["batch"] * math.prod(layer.inputs[0]) for layer in normalized)
    # A gradient that goes on to the normalization of a shortcut is read a second time there, too.
    assert 2 * x < backward.bytes - backward.least < 3 * x
    assert found[kinds.GRADIENT_SUM].least == 0
