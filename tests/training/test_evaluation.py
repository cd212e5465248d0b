"""Evaluation over all images, each counting once: last batches that are smaller, or padded; the same in graphs."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mixprec
from mixprec import graph_capture
from mixprec.app.parts.model import ImageClassifier
from mixprec.training.evaluation import Evaluator
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides

CLASSES = 10


class Logits(chainer.Link):
    """Has its logits from the images: one for each pixel."""

    def forward(self, x):
        return x


class Batches(chainer.dataset.Iterator):
    """``(x, t)`` in batches, the last of them smaller, or padded with images whose labels are -1."""

    def __init__(self, x, t, size, padded):
        self._arrays, self._size, self._padded = (x, t), size, padded
        self.reset()

    def reset(self):
        self._left = list(range(0, len(self._arrays[0]), self._size))

    def __next__(self):
        if not self._left:
            raise StopIteration
        start = self._left.pop(0)
        x, t = (array[start : start + self._size] for array in self._arrays)
        missing = self._size - len(x)
        if self._padded and missing:
            x = np.concatenate([x, np.full((missing, *x.shape[1:]), 7, x.dtype)])
            t = np.concatenate([t, np.full(missing, -1, t.dtype)])
        return x, t


def _counted(y, t):
    """Returns loss, top-1 and top-5 over all images, in float64 and by sorting."""
    y = y.astype(np.float64)
    order = np.argsort(-y, axis=1, kind="stable")
    log_z = np.log(np.exp(y).sum(axis=1))
    rows = np.arange(len(t))
    return {
        "validation/main/loss": np.mean(log_z - y[rows, t]),
        "validation/main/accuracy": np.mean(order[:, 0] == t),
        "validation/main/accuracy_top5": np.mean((order[:, :5] == t[:, None]).any(axis=1)),
    }


def _as_it_is(batch, _):
    return batch


def _evaluate(evaluator):
    evaluator.name = "validation"
    return evaluator()


@given(st.integers(1, 150), st.integers(1, 40), st.booleans(), st.integers(0, 2**31))
def test_every_image_counts_once(images, size, padded, seed):
    random = np.random.RandomState(seed)
    y = np.stack([random.permutation(CLASSES) for _ in range(images)]).astype(np.float32)
    t = random.randint(0, CLASSES, images).astype(np.int32)
    model = ImageClassifier(Logits(), smoothing=0.1)
    found = _evaluate(Evaluator(Batches(y, t, size, padded), model, _as_it_is))
    expected = _counted(y, t)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # Each batch rounds its mean to float32 once; the loss is rounded in between, too.
        assert found[name] == pytest.approx(value, rel=2.0**-18 if "loss" in name else 2.0**-23, abs=1e-12)
        if "accuracy" in name:
            assert round(found[name] * images) == round(value * images)


def test_fifty_thousand_images_are_counted_exactly():
    """In batches of 192, of which float16 could not tell the shares, and float32 not the sum."""
    random = np.random.RandomState(0)
    images = 50_000
    y = random.normal(size=(images, CLASSES)).astype(np.float16)
    t = random.randint(0, CLASSES, images).astype(np.int32)
    y[:, :5] += np.where(random.rand(images, 5) < 0.1, np.float16(5), np.float16(0))
    rows = np.arange(images)
    larger, equal = (y > y[rows, t][:, None]).sum(1), (y == y[rows, t][:, None]).sum(1)
    top5 = int((larger + equal <= 5).sum())
    top1 = int((y.argmax(1) == t).sum())
    for padded in (False, True):
        found = _evaluate(Evaluator(Batches(y, t, 192, padded), ImageClassifier(Logits()), _as_it_is))
        assert abs(found["validation/main/accuracy"] * images - top1) < 0.01
        assert abs(found["validation/main/accuracy_top5"] * images - top5) < 0.01


def test_a_batch_of_padding_only_does_not_count():
    """A rank that has fewer images than others may get one."""
    y = np.eye(CLASSES, dtype=np.float32)[:4]
    t = np.array([0, 1, -1, -1], np.int32)
    found = _evaluate(Evaluator(Batches(y, t, 2, False), ImageClassifier(Logits()), _as_it_is))
    assert found["validation/main/accuracy"] == 1
    assert np.isfinite(found["validation/main/loss"])


def test_weights_are_swapped_for_the_evaluation_only():
    inside = []

    class Weights:
        def __enter__(self):
            inside.append(True)

        def __exit__(self, *_):
            inside.pop()

    class Looking(chainer.Link):
        def forward(self, x):
            chainer.report({"inside": float(len(inside))}, self)

    batches = Batches(np.zeros((3, 1), np.float32), np.zeros(3, np.int32), 2, False)
    evaluator = Evaluator(batches, Looking(), lambda batch, _: batch[:1], weights=Weights)
    assert _evaluate(evaluator) == {"validation/main/inside": 1}
    assert inside == []


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, pad=1, nobias=True)
            self.norm = L.BatchNormalization(8)
            self.linear = L.Linear(8, CLASSES)

    def forward(self, x):
        return self.linear(F.average_pooling_2d(F.relu(self.norm(self.conv(x))), x.shape[2:]))


@pytest.mark.slow
@both_sides
@pytest.mark.parametrize("padded", [False, True])
def test_a_captured_evaluation_is_the_eager_one(side, padded):  # noqa: F811
    """Top-1 and top-5 in a graph: nothing is read, and the figures are the same bit for bit."""
    random = np.random.RandomState(0)
    x = random.normal(size=(42, 3, 8, 8)).astype(np.float32)
    t = random.randint(0, CLASSES, 42).astype(np.int32)

    def send(batch, _):
        return tuple(map(side.send, batch))

    np.random.seed(0)
    model = ImageClassifier(Net())
    mixprec.convert(model, x[:2])
    side.send_link(model)
    found = []
    evaluate = graph_capture.capture_evaluation(model, required=True)
    for function in (None, evaluate):
        evaluator = Evaluator(Batches(x, t, 4, padded), model, send, eval_func=function)
        with side.eagerly():
            found.append(_evaluate(evaluator))
    assert found[0] == found[1]
    assert found[0].keys() == {f"validation/main/{name}" for name in ("loss", "accuracy", "accuracy_top5")}
    assert evaluate.replays >= 5
