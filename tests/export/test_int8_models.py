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
from mixprec.export.int8 import quantize
from tests.export.graphs import GraphMaker, images
from tests.export.networks import Everything, trained
from tests.export.quantized import BOTH, run
from tests.zoo.models import CASES as CHAINER

ZOO = ("attention_of_pixels", "group_normalization", "shufflenet")


def exported(name):
    """(a Chainer model as a graph, batches of images)."""
    if name == "everything":
        model, array = trained(Everything, 3, 16, 16)
    else:
        np.random.seed(0)
        case = CHAINER[name]
        model, inputs = case.build(), case.inputs(np.random.RandomState(0))
        model = getattr(model, "predictor", model)
        array = inputs[0] if isinstance(inputs, tuple) else inputs
        model(array)
    return mixprec.export.onnx(model, array), images(16, *array.shape[1:])


@BOTH
@pytest.mark.parametrize("name", ["everything", *(pytest.param(name, marks=pytest.mark.slow) for name in ZOO)])
def test_exported_models(name, target, only_minmax):
    network, batches = exported(name)
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
            self.conv3, self.conv4 = L.Convolution2D(16, 32, 3, 2, 1), L.Convolution2D(32, 32, 3, pad=1)
            self.shortcut, self.fc = L.Convolution2D(16, 32, 1, 2), L.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x) + x)
        x = F.relu(self.conv4(F.relu(self.conv3(x))) + self.shortcut(x))
        return self.fc(F.average(x, (2, 3)))

    def graph(self):
        make = GraphMaker(1, 8, 8)

        def conv(x, link, kernel=3, stride=1):
            arrays = {"weights": link.W.array, "bias": link.b.array}
            return make.conv(x, len(link.b), kernel=kernel, stride=stride, **arrays)

        x = make.relu(conv("images", self.conv1))
        x = make.relu(make.node("Add", conv(x, self.conv2), x))
        y = conv(make.relu(conv(x, self.conv3, stride=2)), self.conv4)
        x = make.relu(make.node("Add", y, conv(x, self.shortcut, kernel=1, stride=2)))
        return make.model((make.head(x, 10, weights=self.fc.W.array, bias=self.fc.b.array), 2))


@pytest.fixture(scope="module")
def digits():
    """(a trained network as a graph, training images, validation images, their labels)."""
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn (extra digits) is not installed")
    array, labels = datasets.load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(array))
    array = (array[order].reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)
    labels = labels[order].astype(np.int32)
    np.random.seed(0)
    network = Digits()
    optimizer = chainer.optimizers.Adam().setup(L.Classifier(network))
    steps = [start for _ in range(2) for start in range(0, 1440, 16)]
    for step, start in enumerate(steps):
        optimizer.alpha = 0.01 * (1 - step / len(steps))
        optimizer.update(optimizer.target, array[start : start + 16], labels[start : start + 16])
    return network.graph(), array[:1440], array[1440:], labels[1440:]


@pytest.mark.parametrize(("target", "half_ends"), [("cpu", False), ("tensorrt", True)])
def test_digits_lose_less_than_a_point(digits, target, half_ends):
    network, training, validation, labels = digits
    batches = [training[start : start + 32] for start in range(0, 256, 32)]
    model, report = quantize(network, batches, target=target, half_ends=half_ends)
    assert report["held_out_images"] == 64

    def accuracy(model, **how):
        return np.mean(run(model, validation, **how)[0].argmax(1) == labels)

    exact = accuracy(network)
    assert exact > 0.9
    # TensorRT's kernels are not those of this processor: its graph is judged as it stands.
    assert accuracy(model, qdq_in_float=target == "tensorrt") >= exact - 0.01
    assert model.ByteSize() < 0.5 * network.ByteSize()
