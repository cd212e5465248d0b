"""Counts of a training step on the stand-in device: each number is the sum of what ResNet-50 is made of."""

import json

import pytest

from benchmarks import counted
from benchmarks.counted import Counts
from models import MODELS

SMALL = {"arch": "resnet50", "batch": 4, "size": 64}
LARGE = {"arch": "resnet50", "batch": 8, "size": 224}

# ResNet-50: 1 + 16 blocks of 3 + 4 shortcuts = 53 convolutions, each with a batch normalization; 33 of these have a
# ReLU, 16 an addition and a ReLU. 161 parameters: 53 filters, 2 x 53 of batch normalization, 2 of the last layer.
CONVOLUTIONS, BLOCKS, RELUS = 53, 16, 49
FORWARD = {"conv_fprop": CONVOLUTIONS, "batch_norm": CONVOLUTIONS, "max_pool": 1, "global_average_pool": 1, "linear": 1}
BACKWARD = {
    "conv_dgrad": CONVOLUTIONS - 1,  # none of the images
    "conv_wgrad": CONVOLUTIONS,
    "batch_norm_backward": CONVOLUTIONS,
    "max_pool_backward": 1,
    "global_average_pool_backward": 1,
    "linear_dgrad": 1,
    "linear_wgrad": 1,
    "bias_grad": 1,
}
LOSS = {"softmax_cross_entropy": 1, "mean_of_counted": 1, "softmax_cross_entropy_backward": 1}
# Gradients meet where a block begins; the loss is multiplied by its scale, and so is its gradient, which begins with 1.
ADDITIONS = {"add": BLOCKS}
SCALING = {"astype": 2, "multiply": 3, "ones_like": 1}
# hits = argmax == t; share = hits.sum() / maximum((t != -1).sum(), 1), in float32; logits in 16 bits are cast first.
ACCURACY = {"argmax": 1, "equal": 1, "not_equal": 1, "add.reduce": 2, "maximum": 1, "divide": 1, "asarray": 1}
CAST = {"cast": 1}
UPDATE = {"save": 1, "check": 1, "update": 1}  # running statistics are kept for a step that is skipped
STEP = {**FORWARD, **BACKWARD, **LOSS, **ADDITIONS, **SCALING, **ACCURACY, **CAST, **UPDATE}
# Arguments go into the buffers of the graph; loss, reported loss and reported accuracy come out of it.
AROUND_A_GRAPH = {"setitem": 2, "copy": 3}


def _count(*overrides, config="nhwc_fused_batched.yaml", settings=SMALL):
    return counted.counts_of([("it", config, overrides)], MODELS["resnet50"], **settings)["it"]


def test_a_fused_step():
    found = _count()
    assert found.note == ""
    assert found.parts == STEP
    assert found.launches == sum(STEP.values()) == 309
    # What a schedule moves is uploaded with one copy; images come from the loader as the network wants them.
    assert (found.uploads, found.syncs, found.conversions, found.functions) == (1, 0, 0, 0)
    assert (found.graph_launches, found.in_graph) == (0, None)


def test_without_fusion_additions_and_relus_are_launches_of_their_own():
    found = _count("model.fuse=false")
    relus = {"relu": RELUS, "relu_backward": RELUS, "add": 2 * BLOCKS}
    assert found.parts == STEP | relus
    assert found.launches == 309 + 2 * RELUS + BLOCKS
    assert (found.uploads, found.syncs, found.conversions, found.functions) == (1, 0, 0, 0)


def test_a_step_as_a_graph():
    found = _count(config="static_graph.yaml", settings=LARGE)
    assert found.parts == STEP | AROUND_A_GRAPH
    assert (found.launches, found.graph_launches, found.in_graph) == (sum(AROUND_A_GRAPH.values()), 1, 309)
    assert (found.uploads, found.syncs, found.conversions, found.functions) == (1, 0, 0, 0)
    assert found.note == "309 launches in the graph"


def test_in_float32_logits_are_not_cast():
    found = _count("precision.compute=float32")
    assert found.parts == {name: number for name, number in STEP.items() if name not in CAST}
    assert (found.launches, found.note) == (308, "")


def test_in_bfloat16_images_and_what_is_computed_in_float32_are_cast():
    """Loaders have no bfloat16. Nothing changes its layout."""
    found = _count("precision.compute=bfloat16")
    assert {name: number for name, number in found.parts.items() if name != "cast"} == {
        name: number for name, number in STEP.items() if name != "cast"
    }
    assert found.conversions == found.syncs == 0


def test_with_padded_channels_the_first_filter_gets_zeros_and_its_gradient_loses_them():
    found = _count("data.pad_channels=true")
    assert found.parts == STEP | {"conv_fprop": CONVOLUTIONS + 1, "conv_wgrad": CONVOLUTIONS + 1}
    assert found.conversions == 0


def test_an_update_one_by_one_cannot_be_seen():
    found = _count("update.batched=false")
    assert found.launches is None
    assert found.note.endswith("whose launches cannot be seen: the update of parameters one by one")
    # More than one for each of the 161 parameters, and no read of the loss scale.
    assert sum(found.parts.values()) > 309 + 161
    assert (found.uploads, found.syncs, found.conversions, found.functions) == (0, 0, 0, 0)


def test_in_layout_nchw_functions_are_chainers_own():
    found = _count(config="fp32.yaml")
    forward = 2 * CONVOLUTIONS + RELUS + 3  # two poolings, and the last layer
    # Of the last layer there are gradients of inputs, weights and bias.
    backward = (CONVOLUTIONS - 1) + 2 * CONVOLUTIONS + RELUS + 2 + 3
    assert found.functions == forward + backward
    assert found.launches is found.syncs is found.uploads is found.conversions is None
    assert found.note.endswith("the functions of layout nchw")


def test_what_fails_has_a_note():
    found = counted.counts_of(
        [("two batches", "fp32.yaml", ["training.accumulate=2"]), ("no config", "none.yaml", [])],
        MODELS["resnet18"],
        **SMALL,
    )
    assert [counts.launches for counts in found.values()] == [None, None]
    assert found["two batches"].note == "ValueError: training.accumulate is 2; only steps of one batch are counted"
    assert "none.yaml" in found["no config"].note


@pytest.fixture
def counts():
    return {
        "seen": Counts(5, 1, 309, 1, 0, 0, 0, {"copy": 5}, "309 launches in the graph"),
        "not seen": Counts(functions=370, note="why"),
    }


def test_a_table(counts):
    title, seen, unseen = counted.table(counts).splitlines()
    assert title.split() == ["launches", "graphs", "uploads", "syncs", "conversions", "functions"]
    assert seen.split() == ["seen", "5", "1", "1", "0", "0", "0", "309", "launches", "in", "the", "graph"]
    assert unseen.split() == ["not", "seen", "-", "-", "-", "-", "-", "370", "why"]


def test_a_list_for_json(counts):
    keys = {"name", "launches", "graph_launches", "uploads", "syncs", "conversions", "functions", "note"}
    rows = json.loads(json.dumps(counted.as_json(counts)))
    assert [set(row) for row in rows] == [keys, keys]
    numbers = {"launches": 5, "graph_launches": 1, "uploads": 1, "syncs": 0, "conversions": 0, "functions": 0}
    assert rows[0] == {"name": "seen", **numbers, "note": "309 launches in the graph"}
    assert (rows[1]["launches"], rows[1]["functions"]) == (None, 370)
