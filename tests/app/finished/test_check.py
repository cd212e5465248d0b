"""The numbers of an export's table, on networks that are wrong by a known number of images."""

import chainer
import chainer.links as L
import numpy as np

from mixprec.app.finished.check import Candidate, compare

N, CLASSES = 40, 4


class Images:
    """Random images, in two batches."""

    def __init__(self, labels):
        self.x, self.labels = np.random.RandomState(0).randn(N, 3, 4, 4).astype("f"), labels

    def __len__(self):
        return N

    def batches(self, size):
        for part in np.array_split(np.arange(N), 2):
            yield self.x[part], self.labels[part]

    def normalize(self, pixels):
        return np.resize(pixels, (len(pixels), 3, 4, 4))


def _turned(logits, count):
    """Returns logits with another class on the first ``count`` images."""
    return np.concatenate([np.roll(logits[:count], 1, axis=1), logits[count:]])


def test_accuracy_drop_equal_and_difference():
    network = chainer.Sequential(L.Linear(48, CLASSES))
    with chainer.no_backprop_mode():
        images = Images(None)
        logits = network(images.x).array
    images.labels = np.where(np.arange(N) % 4 == 3, -1 - logits.argmax(1), logits.argmax(1)).astype("i")  # 3 of 4 right

    def run(x):
        with chainer.no_backprop_mode():
            return network(x).array

    def worse(x):  # on 5 images of each batch, of which the labels of one are wrong before and after
        return _turned(run(x), 5)

    candidates = [
        Candidate("exact", b"12", run, is_timed=False, takes_pixels=False, limit=None),
        Candidate("worse", b"1", worse, is_timed=False, takes_pixels=True, limit=1.0),
    ]
    mixprec, exact, worst = compare(network, candidates, images, lambda count: None)
    assert [row.equal for row in (mixprec, exact, worst)] == [1, 1, 30 / N]
    assert [row.accuracy for row in (mixprec, exact)] == [30 / N, 30 / N]
    assert worst.accuracy == (30 - 8) / N
    np.testing.assert_allclose(worst.drop, 100 * 8 / N, rtol=1e-12)
    assert (mixprec.difference, exact.size, worst.size) == (0, 2, 1)
    assert exact.difference < 1e-5
    part = np.concatenate([np.arange(5), np.arange(20, 25)])
    np.testing.assert_allclose(
        worst.difference, np.abs(np.roll(logits[part], 1, axis=1) - logits[part]).max(), rtol=1e-5
    )
