"""Converters of batches: what a network computes with a channel of zeros, and that nothing is copied on the way."""

import copy
import functools
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.data.loaders.batch import to_nchw, to_padded_nchw
from mixprec.data.mixing import Mixing
from mixprec.graph_capture.step_arguments import Arguments
from tests.stand_ins.graph_on_host import GraphCuda

BATCH, SIZE = 4, 16


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, stride=2, pad=1)
            self.bn = L.BatchNormalization(8)
            self.fc = L.Linear(8, 5)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        return self.fc(F.average_pooling_2d(h, SIZE // 2).reshape(-1, 8))


@pytest.fixture(scope="module")
def net():
    np.random.seed(0)
    return Net()


@pytest.fixture
def batch():
    """As an iterator with ``pad_channels=True`` gives it."""
    rng = np.random.default_rng(0)
    memory = np.zeros((BATCH, SIZE, SIZE, 4), np.float16)
    memory[..., :3] = rng.standard_normal((BATCH, SIZE, SIZE, 3))
    return memory[..., :3], rng.integers(0, 5, BATCH).astype(np.int32)


def results(net, x, t):
    net = copy.deepcopy(net)
    loss = F.softmax_cross_entropy(net(x), t)
    loss.backward()
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        logits = net(x)
    return loss.array, logits.array, *(param.grad for _, param in sorted(net.namedparams()))


def test_the_first_convolution_takes_the_channel_of_zeros_as_it_is(net, batch, announced):
    """Bit for bit what it computes without; with neither a conversion of the layout nor an announced copy."""
    model = copy.deepcopy(net)
    mixprec.convert(model, np.zeros((2, 3, SIZE, SIZE), np.float32))
    x, t = batch
    dense = np.ascontiguousarray(x)
    padded, labels = to_padded_nchw(batch)
    found = results(model, padded, labels)
    assert not announced.records
    assert padded.shape == (BATCH, 4, SIZE, SIZE)
    for one, other in zip(found, results(model, *to_nchw((dense, t))), strict=True):
        np.testing.assert_array_equal(one, other)
    model = copy.deepcopy(net)
    assert "layout conversions:   0 a step" in str(mixprec.convert(model, padded))


def test_the_input_of_a_captured_step_keeps_the_channel_of_zeros(batch):
    graphs = GraphCuda().graphs
    x, t = to_padded_nchw(batch)
    arguments = Arguments((x, t), {})
    buffers = arguments.buffers_on(graphs)
    buffers.fill(arguments)
    (found, labels), _ = buffers.arguments()
    assert found.strides == x.strides
    np.testing.assert_array_equal(np.asarray(found), x)
    np.testing.assert_array_equal(np.asarray(labels), t)
    assert graphs.copies == 2


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_without_a_fourth_channel_are_refused(channels):
    with pytest.raises(ValueError, match=r"have no fourth channel: the iterator needs pad_channels=True"):
        to_padded_nchw((np.zeros((2, 8, 8, channels), np.float32), np.zeros(2, np.int32)))


@pytest.mark.parametrize(("converter", "channels"), [(to_nchw, 3), (to_padded_nchw, 4)])
def test_images_are_mixed_in_the_layout_of_the_iterator(batch, converter, channels):
    """One view, the last thing that is done: what is mixed has the bits that it has after the converter."""
    mixing = Mixing(mixup=1.0, seed=1)
    found = converter(batch, "@numpy", functools.partial(mixing.mix, number=5))
    assert found[0].shape == (BATCH, channels, SIZE, SIZE)
    assert found[0].transpose(0, 2, 3, 1).flags.c_contiguous
    for one, other in zip(found, mixing(*converter(batch, "@numpy"), number=5), strict=True):
        np.testing.assert_array_equal(one, other)


def test_it_can_be_pickled(batch):
    x, _ = pickle.loads(pickle.dumps(to_padded_nchw))(batch, "@numpy")
    assert np.shares_memory(x, batch[0])
