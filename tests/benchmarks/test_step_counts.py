"""Counts of a training step on the stand-in device: each number is the sum of what a network is made of."""

import json
from typing import NamedTuple

import pytest

from benchmarks.profile import kinds
from benchmarks.step import counts, model
from benchmarks.step.counts import Counts
from benchmarks.step.launches import COPY, Launch, totals
from models import MODELS
from scripts import benchmark

pytestmark = pytest.mark.slow

FILTER = 1  # of the first convolution, which is folded both ways


class Network(NamedTuple):
    """What a network is made of. Each convolution has a batch normalization, and each block an addition.

    Batch normalizations are an own launch forward, by the sums of the convolution, and two backward, which also add the
    gradients that meet where a block begins. Pairs, of a block and its shortcut, are computed together, and the first
    one with the max pooling. The first convolution is one on folded images: a launch for these, and one for the filter
    both ways.
    """

    convolutions: int
    blocks: int
    pairs: int
    relus: int
    params: int


# ResNet-18: 1 + 8 blocks of 2 + 3 shortcuts. ResNet-50: 1 + 16 blocks of 3 + 4 shortcuts.
# A filter and two of batch normalization for each convolution, and two of the last layer.
RESNET18 = Network(20, 8, 3, 17, 3 * 20 + 2)
RESNET50 = Network(53, 16, 4, 49, 3 * 53 + 2)


def _parts(network):
    """Returns how often a step of everything in float16 launches each primitive and function."""
    convolutions = network.convolutions
    layers = {"batch_norm": convolutions - 2 * network.pairs - 1, "dual_batch_norm": network.pairs}
    layers["batch_norm_max_pool"] = 1
    layers |= {f"{name}_backward": 2 * number for name, number in layers.items()}
    layers |= {"global_average_pool": 1, "global_average_pool_backward": 1}
    layers |= {"conv_images": 1, "conv_fprop": convolutions + FILTER, "conv_wgrad": convolutions + FILTER}
    layers["conv_dgrad"] = convolutions - 1  # none of the images
    layers |= {"linear": 1, "linear_dgrad": 1, "linear_wgrad": 1, "bias_grad": 1}
    loss = {"softmax_cross_entropy": 1, "softmax_cross_entropy_backward": 1}  # the first one with the accuracy
    scale = {"astype": 1}  # to float32; the backward pass begins with it
    update = {"save": 1, "check": 1, "update": 1}  # running statistics are kept for a step that is skipped
    return layers | loss | scale | update


STEP = _parts(RESNET18)
WITHOUT_SUMS = {"batch_norm": 2 * STEP["batch_norm"], "dual_batch_norm": 3 * 3, "batch_norm_max_pool": 2}
APART = {
    **dict.fromkeys(("batch_norm", "batch_norm_backward"), 2 * RESNET18.convolutions),
    **dict.fromkeys(("dual_batch_norm", "dual_batch_norm_backward"), 0),
    **dict.fromkeys(("batch_norm_max_pool", "batch_norm_max_pool_backward"), 0),
    **dict.fromkeys(("max_pool", "max_pool_backward"), 1),
}
# Arguments go into the buffers of the graph; the loss, which is also what is reported, and the accuracy come out of it.
AROUND_A_GRAPH = {"setitem": 2, "copy": 2}


def _count(*overrides, config="nhwc_fused_batched.yaml"):
    settings = {"arch": "resnet18", "batch": 4, "size": 32}
    return counts.counts_of([("it", config, overrides)], MODELS["resnet18"], **settings)["it"]


@pytest.fixture(scope="module")
def full():
    """A ResNet-50 on 224x224 pixels."""
    return counts.counts_of(counts.WAYS, MODELS["resnet50"], arch="resnet50", batch=2, size=224)


def test_a_fused_step(full):
    found = full[counts.EAGER]
    assert found.note == ""
    assert found.parts == _parts(RESNET50)
    assert found.launches == sum(found.parts.values()) == 320
    # What a schedule moves is uploaded with one copy; images come from the loader as the network wants them.
    assert (found.uploads, found.syncs, found.conversions) == (1, 0, 0)
    assert found.graph_launches == 0
    lines = counts.parts_table(found).splitlines()
    assert lines[-1].split() == ["all", "320"]
    assert ["conv_dgrad", "52"] in map(str.split, lines)


def test_a_step_as_a_graph(full):
    found = full[counts.CAPTURED]
    assert found.parts == _parts(RESNET50) | AROUND_A_GRAPH
    assert (found.launches, found.graph_launches) == (sum(AROUND_A_GRAPH.values()), 1)
    assert (found.uploads, found.syncs, found.conversions) == (1, 0, 0)
    assert found.note == "320 launches in the graph"


def test_the_bytes_of_a_step(full):
    """GB in a batch of 256, and the least ones. Nothing is converted, nothing read across memory."""
    expected = (
        {kinds.CONV_FPROP: (1 + 53 + FILTER, 10.87, 10.87), kinds.CONV_DGRAD: (52, 10.71, 10.71)}
        | {kinds.CONV_WGRAD: (53 + FILTER, 10.69, 10.69), kinds.BN_FORWARD: (53 - 4, 12.58, 12.58)}
        | {kinds.BN_BACKWARD: (2 * (53 - 4), 32.38, 21.31), kinds.ELEMENTWISE: (1, 0, 0), kinds.POOLING: (2, 0.1, 0.1)}
        | {kinds.LINEAR: (3, 0.02, 0.02), kinds.LOSS: (2, 0, 0), kinds.UPDATE: (3, 0.66, 0.66), kinds.OTHER: (1, 0, 0)}
    )
    for name, copies in ((counts.EAGER, {}), (counts.CAPTURED, {COPY: (4, 0.15, 0.15)})):
        found = totals(full[name].moves, 256)
        rounded = {
            kind: (total.launches, round(total.bytes / 1e9, 2), round(total.least / 1e9, 2))
            for kind, total in found.items()
        }
        assert rounded == expected | copies


@pytest.mark.parametrize(("batch", "least", "most"), [(256, 32.5, 33.0), (32, 5.3, 5.8)])
def test_the_modelled_time_of_a_step(full, batch, least, most):
    """Milliseconds; every convolution is one of the record's."""
    h100, moves = model.of_h100(), full[counts.CAPTURED].moves
    assert least < 1e3 * sum(h100.by_kind(moves, batch).values()) < most
    products = [launch for launch in moves if launch.kind.startswith("conv") and launch.operations]
    assert len(products) == 3 * RESNET50.convolutions - 1
    assert all(map(h100.knows, products))


CHANGES = {
    # The additions of two gradients are functions as well, in the place of those before a batch normalization.
    "model.fuse=false": APART | {"relu": RESNET18.relus, "relu_backward": RESNET18.relus, "add": 2 * RESNET18.blocks},
    # Tensor cores, for which images are folded, have no float32.
    "precision.compute=float32": {
        **dict.fromkeys(("conv_fprop", "conv_wgrad"), RESNET18.convolutions),
        "conv_images": None,
        **WITHOUT_SUMS,
    },
    "data.pad_channels=true": {},  # the first filter gets the zeros for these when it is folded
}


@pytest.mark.parametrize("override", CHANGES)
def test_other_settings(override):
    found = _count(override)
    assert found.parts == {name: count for name, count in (STEP | CHANGES[override]).items() if count}
    assert (found.launches, found.note) == (sum(found.parts.values()), "")
    assert (found.uploads, found.syncs, found.conversions) == (1, 0, 0)


def test_in_bfloat16_images_and_what_is_computed_in_float32_are_cast():
    """Loaders have no bfloat16. Nothing changes its layout."""
    found = _count("precision.compute=bfloat16")
    assert found.parts == STEP | WITHOUT_SUMS | {"cast": found.parts["cast"]}
    assert found.conversions == found.syncs == 0


@pytest.mark.long
def test_gradients_of_several_batches_are_added_as_they_lie_in_memory():
    """Once for each parameter. Nothing is turned around, neither filters nor images, and no gradient is copied."""
    found = _count("training.accumulation_steps=2", config="static_graph.yaml")
    assert found.parts["conv_fprop"] == 2 * (RESNET18.convolutions + FILTER)
    assert found.parts["add"] >= RESNET18.params + 2
    assert found.conversions == 0
    assert found.parts["copy"] == 3  # out of the graph: the loss, the mean that is reported, and the accuracy


def test_what_has_failed_has_a_note():
    found = _count(config="none.yaml")
    assert found == Counts(note=found.note)
    assert "none.yaml" in found.note


def test_a_table_and_a_list_for_json():
    found = {"seen": Counts(5, 1, 1, 0, 0, {"copy": 5}, "297 launches in the graph"), "not seen": Counts(note="why")}
    title, seen, unseen = counts.table(found).splitlines()
    assert title.split() == ["launches", "graphs", "uploads", "syncs", "conversions"]
    assert seen.split() == ["seen", "5", "1", "1", "0", "0", "297", "launches", "in", "the", "graph"]
    assert unseen.split() == ["not", "seen", "-", "-", "-", "-", "-", "why"]
    numbers = {"launches": 5, "graph_launches": 1, "uploads": 1, "syncs": 0, "conversions": 0}
    assert json.loads(json.dumps(counts.as_json(found))) == [
        {"name": "seen", **numbers, "note": "297 launches in the graph"},
        {"name": "not seen", **dict.fromkeys(numbers), "note": "why"},
    ]


def test_the_command(monkeypatch, tmp_path, capsys):
    moves = (Launch(kinds.UPDATE, "update", fixed=650e6),)
    found = {counts.EAGER: Counts(5, parts={"copy": 5}), counts.CAPTURED: Counts(1, 1, moves=moves)}
    monkeypatch.setattr(counts, "counts_of", lambda *_, **__: found)
    benchmark.main(["step", "--batch", "32", "--json", str(tmp_path / "step.json")])
    record = json.loads((tmp_path / "step.json").read_text())
    assert record["settings"] == {"arch": "resnet50", "size": 224, "batch": 32}
    assert (record["counts"], record["parts"]) == (counts.as_json(found), {"copy": 5})
    assert record["kinds"] == {kinds.UPDATE: {"launches": 1, "bytes": 650e6, "least": 650e6}}
    assert record["modelled seconds"].keys() == {kinds.UPDATE, model.OUTSIDE}
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:4] == ["update", "1", "0.65", "0.65"] for line in lines)
    assert lines[-1].startswith("model, by the rates of 2026-11-26 on an H100: ")
