"""mixprec.convert: dtypes, results beside FP32, and models that were not written for it."""

import copy
import json
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import serializers

import mixprec
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


def test_dtypes_of_parameters_and_gradients():
    model = L.Classifier(_build(Block))
    mixprec.convert(model)
    _gradients(model, *_data())
    half = {"/predictor/conv/W", "/predictor/conv/b", "/predictor/conv2/W", "/predictor/conv2/b"}
    half |= {"/predictor/fc/W", "/predictor/fc/b"}
    for name, param in model.namedparams():
        expected = np.float16 if name in half else np.float32
        assert (param.dtype, param.grad.dtype) == (expected, expected), name
    assert model.predictor.bn.avg_mean.dtype == np.float32


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


def test_nested_outputs_leave_the_model_as_fp32():
    class Two(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.fc = L.Linear(3, 2)

        def forward(self, x):
            h = self.fc(x)
            return {"a": h, "b": [h, (h, "text")]}

    model = Two()
    mixprec.convert(model)
    out = model(np.ones((1, 3), np.float32))
    assert out["a"].dtype == out["b"][0].dtype == out["b"][1][0].dtype == np.float32
    assert out["b"][1][1] == "text"


def test_lazy_initializers_round_the_values_fp32_would_have_had():
    plain, converted = L.Linear(None, 5), L.Linear(None, 5)
    mixprec.convert(converted)
    for model in (plain, converted):
        np.random.seed(1)
        model(np.ones((1, 3), np.float32))
    assert converted.W.dtype == np.float16
    np.testing.assert_array_equal(converted.W.array, plain.W.array.astype(np.float16))


def test_converting_again_changes_nothing_and_float32_casts_back():
    model = L.Classifier(_build(Block))
    first = mixprec.convert(model)
    weights = {name: param.array.copy() for name, param in model.namedparams() if param.array is not None}
    second = mixprec.convert(model)
    assert second.parameters == first.parameters
    for name, param in model.namedparams():
        if param.array is not None:
            np.testing.assert_array_equal(param.array, weights[name], strict=True)
    mixprec.convert(model, compute="float32")
    assert {param.dtype.name for param in model.params()} == {"float32"}
    assert model.predictor(_data()[0]).dtype == np.float32


def test_copies_pickles_and_snapshots_stay_converted(tmp_path):
    model = L.Classifier(_build(Block))
    mixprec.convert(model)
    x, t = _data()
    expected = float(model(x, t).array)
    for other in (copy.deepcopy(model), model.copy(), pickle.loads(pickle.dumps(model))):
        assert float(other(x, t).array) == expected
    serializers.save_npz(tmp_path / "model.npz", model)
    plain = L.Classifier(Block())
    serializers.load_npz(tmp_path / "model.npz", plain)
    assert float(plain(x, t).array) == pytest.approx(expected, rel=12 * EPS16)


def test_evaluation_mode_works():
    model = L.Classifier(_build(Block))
    mixprec.convert(model)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        assert model(*_data()).dtype == np.float32


def test_models_that_were_not_converted_are_left_alone():
    mixprec.convert(L.Linear(2, 2))
    plain = L.Linear(2, 2)
    assert plain(np.ones((1, 2), np.float32)).dtype == np.float32
    half = np.ones((1, 2), np.float16)
    assert F.softmax(half).dtype == np.float16
    assert F.sum(half).dtype == np.float16


def test_report_lists_every_link_with_parameters():
    report = mixprec.convert(MODELS["resnet50"](1000))
    assert len(report.links) == 53 + 53 + 1
    assert sum(report.parameters.values()) == 25_557_032
    assert report.parameters["float32"] == 2 * 26_560  # scale and shift of 53 batch normalizations
    lines = str(report).splitlines()
    assert lines[0].split() == ["link", "class", "before", "after", "why", "fused", "with,", "or", "why", "not"]
    assert any(line.split()[:4] == ["/conv1", "Convolution2D", "float32", "float16"] for line in lines)
    assert json.loads(report.to_json())["compute"] == "float16"


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"model must be a chainer\.Link; found function"):
        mixprec.convert(lambda x: x)
    with pytest.raises(ValueError, match="compute must be one of float16, bfloat16, float32; found 'fp16'"):
        mixprec.convert(L.Linear(2, 2), compute="fp16")


LABELS = np.array([0, 2, 1, 1], np.int32)
SIGNS = np.array([[0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0]], np.int32)
LOSSES = {  # t: real-valued targets
    "softmax_cross_entropy": lambda y, t: F.softmax_cross_entropy(y, LABELS),
    "double backprop": lambda y, t: F.softmax_cross_entropy(y, LABELS, enable_double_backprop=True),
    "sigmoid_cross_entropy": lambda y, t: F.sigmoid_cross_entropy(y, SIGNS),
    "bernoulli_nll": lambda y, t: F.bernoulli_nll(SIGNS.astype(t.dtype), y),
    "gaussian_kl_divergence": lambda y, t: F.gaussian_kl_divergence(y, y),
    "mean_squared_error": F.mean_squared_error,
    "mean_absolute_error": F.mean_absolute_error,
    "huber_loss": lambda y, t: F.sum(F.huber_loss(y, t, 1.0)),
    "hinge": lambda y, t: F.hinge(y, LABELS),
    "contrastive": lambda y, t: F.contrastive(y, y * 2, LABELS % 2),
    "triplet": lambda y, t: F.triplet(y, y * 2, y * 3),
    "mean of a log of a softmax": lambda y, t: F.mean(F.log(F.softmax(y))),
}


@pytest.mark.parametrize("target_dtype", [np.float16, np.float32])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_that_the_model_computes_is_in_fp32(loss, target_dtype):
    targets = np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float16).astype(target_dtype)

    class Model(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.fc = L.Linear(5, 3)

        def forward(self, x):
            self.y = self.fc(x)
            self.loss = loss(self.y, targets)
            return self.loss

    np.random.seed(0)
    x = np.random.normal(size=(4, 5)).astype(np.float16)
    model = Model()
    mixprec.convert(model)
    model(x)
    model.cleargrads()
    model.loss.backward(loss_scale=2.0**8)
    assert (model.y.dtype, model.loss.dtype, model.fc.W.grad.dtype) == (np.float16, np.float32, np.float16)
    # from the same FP16 output; elementwise functions before the loss may round to FP16 once or twice
    exact = loss(chainer.Variable(model.y.array.astype(np.float64)), targets.astype(np.float64))
    assert float(model.loss.array) == pytest.approx(float(exact.array), rel=2 * EPS16)
