"""A converted network on a CUDA device beside NumPy: on a GPU by ``pytest -m gpu``, and on the host's stand-ins."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

import mixprec
from mixprec.functions import reset_dropout
from tests.backends.primitive_cases import exact
from tests.links.test_gpu import distance, gpu, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides

CLASSES = 10


class WithoutNormalization(chainer.Chain):
    """What the ResNet of tests/links/test_gpu.py does not have.

    Biases, concatenation, other poolings, LRN, dropout, a head of many pixels, squeeze and excitation.
    """

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = L.Convolution2D(3, 16, 3, pad=1)
            self.left = L.Convolution2D(16, 8, 1)
            self.right = L.Convolution2D(16, 8, 3, pad=1, groups=2)
            self.gate = L.Linear(16, 16)
            self.fc = L.Linear(None, CLASSES)

    def forward(self, x):
        h = F.local_response_normalization(F.relu(self.stem(x)))
        h = F.average_pooling_2d(F.max_pooling_2d(h, 3, 1, 1), 2)
        h = F.concat([F.leaky_relu(self.left(h)), F.relu(self.right(h))])
        gate = F.sigmoid(self.gate(F.average(h, axis=(2, 3))))
        h = h * F.broadcast_to(gate[:, :, None, None], h.shape)
        return self.fc(F.dropout(h, 0.0))


def _converted(compute):
    np.random.seed(0)
    reset_dropout()  # whose seed is drawn before the weights of the lazy layer
    model = L.Classifier(WithoutNormalization())
    model.compute_accuracy = False
    report = mixprec.convert(model, np.zeros((2, 3, 16, 16), np.float32), compute=compute)
    return model, report


def _step(model, x, t, scale):
    model.cleargrads()
    loss = model(x, t)
    loss.backward(loss_scale=scale)
    return loss


def _results(model, loss, scale):
    found = {name: exact(param.grad) / scale for name, param in model.namedparams()}
    for name, link in model.namedlinks():
        found.update({f"{name}/{key}": exact(link.__dict__[key]) for key in link._persistent})
    return {**found, "loss": exact(loss)}


@both_sides
def test_float32_is_numpys(side):  # noqa: F811
    random = np.random.RandomState(1)
    x, t = random.normal(size=(4, 3, 16, 16)).astype(np.float32), np.arange(4, dtype=np.int32)
    model, _ = _converted("float32")
    expected = _results(model, _step(model, x, t, 1.0).array, 1.0)
    model, _ = _converted("float32")
    model = side.send_link(model)
    loss = _step(model, *side.send((x, t)), 1.0)
    found = _results(side.receive_link(model), np.asarray(side.receive(loss.array)), 1.0)
    assert found.keys() == expected.keys()
    assert abs(found["loss"] - expected["loss"]) <= 1e-5 * expected["loss"]
    for key, value in expected.items():
        # A batch normalization of few pixels, and ReLUs that open or close for less than 1e-6, make more of it.
        assert distance(found[key], value) <= 1e-3, key


@both_sides
def test_float16_is_as_near_to_float32_as_on_numpy(side):  # noqa: F811
    random = np.random.RandomState(1)
    x, t = random.normal(size=(4, 3, 16, 16)).astype(np.float32), np.arange(4, dtype=np.int32)
    scale = 2.0**7
    results = {}
    for key, compute in (("truth", "float32"), ("numpy", "float16")):
        model, _ = _converted(compute)
        results[key] = _results(model, _step(model, x, t, scale).array, scale)
    model, report = _converted("float16")
    model = side.send_link(model)
    loss = _step(model, *side.send((x, t)), scale)
    found = _results(side.receive_link(model), np.asarray(side.receive(loss.array)), scale)
    errors, on_numpy = (
        {key: distance(value, results["truth"][key]) for key, value in each.items()}
        for each in (found, results["numpy"])
    )
    assert errors["loss"] <= 0.02
    for key, error in errors.items():
        assert error <= 2 * on_numpy[key] + 2e-3, key
    assert len(report.conversions) <= 2
