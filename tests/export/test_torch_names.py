"""Names by rule: those of torchvision's ResNets, and those of other structures."""

import chainer
import chainer.functions as F
import chainer.links as L
import pytest

from mixprec.export import WeightsError, load_torchvision, torchvision
from mixprec.export.matching import contents, file_names
from mixprec.export.torch_names import torch_names
from models import MODELS

BLOCKS = {
    "resnet18": (2, (2, 2, 2, 2)),
    "resnet34": (2, (3, 4, 6, 3)),
    "resnet50": (3, (3, 4, 6, 3)),
    "resnet101": (3, (3, 4, 23, 3)),
    "resnet152": (3, (3, 8, 36, 3)),
    "resnext50_32x4d": (3, (3, 4, 6, 3)),
}


def torchvisions_names(convolutions, blocks):
    """The names in a state dict of torchvision, written down by hand from its ``resnet.py``."""

    def normalization(prefix):
        return {f"{prefix}.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}

    names = {"conv1.weight", "fc.weight", "fc.bias", *normalization("bn1")}
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            prefix = f"layer{stage}.{block}"
            for number in range(1, convolutions + 1):
                names |= {f"{prefix}.conv{number}.weight", *normalization(f"{prefix}.bn{number}")}
        if stage > 1 or convolutions == 3:
            prefix = f"layer{stage}.0.downsample"
            names |= {f"{prefix}.0.weight", *normalization(f"{prefix}.1")}
    return names


@pytest.mark.parametrize("arch", ["resnet18", *(pytest.param(a, marks=pytest.mark.slow) for a in [*BLOCKS][1:])])
def test_names_are_torchvisions(arch):
    names = file_names(MODELS[arch](10), torch=True)
    assert set(names.values()) == torchvisions_names(*BLOCKS[arch])
    assert len(names) == len(set(names.values()))


def test_a_sequential_counts_its_layers_in_their_order_with_functions_among_them():
    """As nn.Sequential does. Chainer gives the numbers 0, 3, 2 and 1 to these links, in this order."""
    layers = [L.Linear(1, 2), F.relu, L.Linear(2, 3), L.Linear(3, 4), F.relu, L.Linear(4, 5)]
    network = chainer.Sequential(*layers)
    assert [layer.name for layer in layers if isinstance(layer, L.Linear)] == ["0", "3", "2", "1"]
    shapes = {other: contents(network)[name].shape for name, other in file_names(network, torch=True).items()}
    assert {name: shape for name, shape in shapes.items() if name.endswith("weight")} == {
        "0.weight": (2, 1),
        "2.weight": (3, 2),
        "3.weight": (4, 3),
        "5.weight": (5, 4),
    }


def test_a_layer_that_a_sequential_has_twice_has_two_names():
    layer = L.Linear(2, 2, nobias=True)
    names = file_names(chainer.Sequential(layer, F.relu, layer), torch=True)
    assert sorted(names.values()) == ["0.weight", "2.weight"]


def test_lists_chains_and_other_layers():
    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.blocks = chainer.ChainList(*(chainer.Sequential(L.Linear(1, 1), F.relu) for _ in range(11)))
                self.up = L.Deconvolution2D(2, 3, 4)
                self.embed = L.EmbedID(3, 2)
                self.norm = L.LayerNormalization(2)

    names = file_names(Net(), torch=True)
    assert {name.replace(".weight", "").replace(".bias", "") for name in names.values()} == {
        *(f"blocks.{number}.0" for number in range(11)),
        "up",
        "embed",
        "norm",
    }
    assert names["blocks/10/0/W"] == "blocks.10.0.weight"


def test_the_parameters_of_a_single_link_have_no_prefix():
    assert file_names(L.Linear(2, 3), torch=True) == {"W": "weight", "b": "bias"}


def test_what_pytorchs_layers_do_not_have_is_named():
    class Odd(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.fc = L.Linear(1, 1)
                self.slope = chainer.Parameter(0.0, ())

    with pytest.raises(WeightsError, match=r"^slope has no name in PyTorch; known last parts are W, b, gamma"):
        file_names(Odd(), torch=True)
    with pytest.raises(WeightsError, match=r"^no/such/W has no name"):
        torch_names(Odd(), ["fc/W", "no/such/W"])
    with pytest.raises(WeightsError, match=r"^0/b0 has no name in PyTorch"):
        file_names(L.NStepLSTM(1, 2, 3, 0), torch=True)


def test_links_of_links_have_the_names_of_modules_of_modules():
    assert file_names(L.LSTM(3, 4), torch=True) == {
        "lateral/W": "lateral.weight",
        "upward/W": "upward.weight",
        "upward/b": "upward.bias",
    }


def test_a_depthwise_convolution_is_refused():
    """Its weights are (multiplier, channels, height, width); PyTorch's (multiplier * channels, 1, height, width)."""
    network = chainer.Sequential(L.DepthwiseConvolution2D(2, 4, 3))
    with pytest.raises(WeightsError, match=r"^0/W: DepthwiseConvolution2D has its axes in another order than PyTorch"):
        torchvision(network)
    with pytest.raises(WeightsError, match=r"^0/W: DepthwiseConvolution2D has its axes in another order than PyTorch"):
        load_torchvision(network, {"0.weight": network[0].W.array, "0.bias": network[0].b.array})
