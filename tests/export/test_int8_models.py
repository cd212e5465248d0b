"""INT8 of models that were exported, and of a network that has learned digits."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs onnx and onnxruntime: pip install -e '.[export]'")
pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime: pip install -e '.[export]'")

import onnx

import mixprec.export
from mixprec.data.digit_images import load_digits
from mixprec.export.int8 import quantize
from tests.export.graphs import images
from tests.export.networks import Everything, trained
from tests.export.quantized import BOTH, TARGETS, run


@BOTH
def test_an_exported_model(target, only_minmax):
    model, array = trained(Everything, 3, 16, 16)
    network, batches = mixprec.export.onnx(model, array), images(16, *array.shape[1:])
    model, _ = quantize(network, batches, target=target)
    onnx.checker.check_model(model, full_check=True)
    array = np.concatenate(batches)
    for found, wanted in zip(run(model, array, qdq_in_float=True), run(network, array), strict=True):
        assert np.square(found - wanted).mean() < 0.02 * np.square(wanted).mean()


class Digits(chainer.Chain):
    """A small residual network for images of 8x8 pixels."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1, self.conv2 = L.Convolution2D(1, 16, 3, pad=1), L.Convolution2D(16, 16, 3, pad=1)
            self.conv3, self.shortcut = L.Convolution2D(16, 32, 3, 2, 1), L.Convolution2D(16, 32, 1, 2)
            self.fc = L.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x) + x)
        return self.fc(F.average(F.relu(self.conv3(x) + self.shortcut(x)), (2, 3)))


@pytest.mark.slow
def test_digits_lose_less_than_a_point():
    array, labels = load_digits()
    order = np.random.RandomState(0).permutation(len(array))
    array = (array[order].reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)
    labels = labels[order]
    np.random.seed(0)
    network = Digits()
    optimizer = chainer.optimizers.Adam().setup(L.Classifier(network))
    steps = [start for _ in range(2) for start in range(0, 1440, 16)]
    for step, start in enumerate(steps):
        optimizer.alpha = 0.01 * (1 - step / len(steps))
        optimizer.update(optimizer.target, array[start : start + 16], labels[start : start + 16])
    exported = mixprec.export.onnx(network, array[:16])

    def accuracy(model):
        return np.mean(run(model, array[1440:], qdq_in_float=True)[0].argmax(1) == labels[1440:])

    exact = accuracy(exported)
    assert exact > 0.9
    for target in TARGETS:
        model, _ = quantize(exported, [array[start : start + 32] for start in range(0, 256, 32)], target=target)
        assert accuracy(model) >= exact - 0.01
