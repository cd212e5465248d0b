"""mixprec.convert: dtypes, results beside FP32, and models that were not written for it."""

import json

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.base.dtypes import BFLOAT16
from models import MODELS

EPS16 = 2.0**-11  # half a unit in the last place of a float16, relative


class Block(chainer.Chain):
    """A residual block with what people write: aliases, an in-place add, a head, a loss inside."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 16, 3, pad=1)
            self.bn = L.BatchNormalization(16)
            self.conv2 = L.Convolution2D(16, 16, 3, pad=1, groups=2)
            self.norm = L.GroupNormalization(4, 16)
            self.scale = L.Scale(axis=1, W_shape=(16,))
            self.fc = L.Linear(64, 10)

    def features(self, x):
        h = F.relu(self.bn(self.conv(x)))
        h += self.scale(self.norm(self.conv2(h)))
        return F.average_pooling_2d(F.max_pooling_2d(F.leaky_relu(h), 2), 2)

    def forward(self, x):
        return self.fc(F.dropout(self.features(x), 0.0))


class OldStyle(Block):
    """Chainer of before version 4: ``__call__`` instead of ``forward``, and the loss computed by the model."""

    def __call__(self, x, t):
        self.loss = F.softmax_cross_entropy(Block.forward(self, x), t)
        return self.loss


def _data(batch=4):
    random = np.random.RandomState(0)
    return random.normal(size=(batch, 3, 8, 8)).astype(np.float32), random.randint(0, 10, batch).astype(np.int32)


def _build(cls, *args):
    np.random.seed(0)
    return cls(*args)


def _gradients(model, *inputs):
    model.cleargrads()
    loss = model(*inputs)
    loss.backward(loss_scale=2.0**10)
    return loss, {name: param.grad.astype(np.float64) / 2.0**10 for name, param in model.namedparams()}


@pytest.mark.parametrize("build", [lambda: L.Classifier(_build(Block)), lambda: _build(OldStyle)], ids=["new", "old"])
def test_loss_and_gradients_are_those_of_fp32_within_the_rounding_of_fp16(build):
    x, t = _data()
    plain, converted = build(), build()
    mixprec.convert(converted)
    loss, gradients = _gradients(plain, x, t)
    loss16, gradients16 = _gradients(converted, x, t)
    assert loss16.dtype == np.float32
    # a dozen roundings in a row, each relative to the largest value of its array
    assert abs(float(loss16.array) - float(loss.array)) < 12 * EPS16 * abs(float(loss.array))
    for name, expected in gradients.items():
        if name.endswith("conv/b"):
            continue  # in front of a batch normalization: its true value is 0
        # 4 x: both passes round; a norm, because pooling may pick another pixel and move its gradient
        difference = np.linalg.norm(gradients16[name] - expected)
        assert difference < 48 * EPS16 * np.linalg.norm(expected), name


@pytest.mark.parametrize("size", [{"size": 8}, {"axis": (0, 2, 3)}], ids=["initialized", "lazy"])
def test_statistics_in_fp16_are_those_of_fp32_until_the_model_is_reverted(size):
    half, single = (chainer.Sequential(L.BatchNormalization(**size, dtype=dtype)) for dtype in (np.float16, np.float32))
    for model in (half, single):
        mixprec.convert(model)
        for _ in range(3):
            model(np.random.RandomState(0).normal(300, 1, (4, 8, 5, 5)).astype(np.float32))
    for name in ("avg_mean", "avg_var"):
        assert getattr(half[0], name).dtype == np.float32
        np.testing.assert_array_equal(getattr(half[0], name), getattr(single[0], name))
    mixprec.revert(half)
    assert half[0].avg_mean.dtype == half[0].avg_var.dtype == np.float16


def test_activations_are_fp16_and_losses_metrics_and_outputs_fp32():
    seen = {}

    class Spy(chainer.FunctionHook):
        def forward_preprocess(self, function, in_data):
            seen.setdefault(function.label, set()).add(tuple(x.dtype.name for x in in_data[:2]))

    model = L.Classifier(_build(Block))
    mixprec.convert(model)
    with Spy():
        model(*_data())
    assert seen["convolution_2d"] == {("float16", "float16")}
    assert seen["linear"] == {("float16", "float16")}
    assert seen["batch_normalization"] == {("float16", "float32")}
    assert seen["relu"] == {("float16",)}
    assert seen["softmax_cross_entropy"] == {("float16", "int32")}  # widens by itself
    assert model.loss.dtype == model.accuracy.dtype == np.float32
    assert model.predictor(_data()[0]).dtype == np.float32


def test_a_part_of_a_converted_model_can_be_called_alone():
    model = L.Classifier(_build(Block))
    mixprec.convert(model)
    x, _ = _data()
    assert model.predictor.conv(x).dtype == np.float32
    assert model.predictor.conv(x.astype(np.float16)).dtype == np.float32


@pytest.mark.slow
def test_report_lists_every_link_with_parameters():
    report = mixprec.convert(MODELS["resnet50"](1000))
    assert len(report.links) == 53 + 53 + 1
    assert sum(report.parameters.values()) == 25_557_032
    assert report.parameters["float32"] == 2 * 26_560  # scale and shift of 53 batch normalizations
    lines = str(report).splitlines()
    assert lines[0].split() == ["link", "class", "before", "after", "why", "fused", "with,", "or", "why", "not"]
    assert any(line.split()[:4] == ["/conv1", "Convolution2D", "float32", "float16"] for line in lines)
    assert json.loads(report.to_json())["compute"] == "float16"


@pytest.mark.parametrize("link", [L.NStepLSTM, L.NStepBiGRU, L.NStepRNNTanh])
@pytest.mark.parametrize("stored", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_recurrent_layers_of_several_steps_are_stored_in_16_bits(link, stored):
    """Chainer keeps their weights in plain links, whose class says nothing."""
    np.random.seed(0)
    rnn = link(2, 4, 5, 0.0)
    xs = [np.random.normal(size=(length, 4)).astype("f") for length in (3, 1, 2)]
    initial = (None,) * rnn.n_cells
    expected, weights = rnn(*initial, xs)[-1], {name: param.array for name, param in rnn.namedparams()}
    report = mixprec.convert(rnn, compute=stored)
    assert {row.after for row in report.links} == {stored.name}
    assert not report.unknown_links
    for y, reference in zip(rnn(*initial, xs)[-1], expected, strict=True):
        np.testing.assert_allclose(y.array.astype("f"), reference.array, rtol=0, atol=0.02)
    mixprec.revert(rnn)
    for name, param in rnn.namedparams():
        np.testing.assert_array_equal(param.array, weights[name].astype(stored).astype("f"))
