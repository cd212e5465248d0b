"""One training: the accuracy after each epoch, and the time of each step."""

import dataclasses
import math
import statistics
import time

import chainer
import chainer.functions as F
import numpy as np

import mixprec

_TESTED = 512  # images at once when the accuracy is computed


@dataclasses.dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
        arm: name of the optimizer.
        settings: its numbers, a dict.
        dtype: that the model computes in.
        seed: of the weights and of the order of the images.
        accuracies: on the test images after each epoch, 0 to 1.
        seconds: of all steps until then, without the tests.
        milliseconds: of a step, the median of all but the first.
        skipped: number of steps that were skipped.
        loss_scale: the last one.
    """

    arm: str
    settings: dict[str, float]
    dtype: str
    seed: int
    accuracies: list[float]
    seconds: list[float]
    milliseconds: float
    skipped: int
    loss_scale: float

    def epochs_to(self, accuracy):
        """Returns the first epoch, from 1, after which the accuracy is at least that; infinity if there is none."""
        return next((epoch for epoch, found in enumerate(self.accuracies, 1) if found >= accuracy), math.inf)

    def seconds_to(self, accuracy):
        """Returns the seconds of all steps until then, or infinity."""
        epochs = self.epochs_to(accuracy)
        return self.seconds[epochs - 1] if epochs < math.inf else math.inf


def train(images, arm, dtype, seed, *, batch, epochs):
    """Trains a new model, with a learning rate that falls to 0 as a cosine, and returns :class:`Run`.

    The same seed gives all arms the same weights and the same batches. A batch that is not full is left out.

    Args:
        images: :class:`~benchmarks.kfac_training.image_sets.ImageSet`.
        arm: :class:`~benchmarks.kfac_training.compared_arms.Arm`.
        dtype: that the model computes in, ``"float16"`` or ``"float32"``.
        seed: of the weights and of the order of the images.
        batch: images in a batch.
        epochs: number of epochs.
    """
    np.random.seed(seed)  # Chainer's initializers draw from it
    model = images.network()
    optimizer = arm.optimizer(dtype).setup(model)
    arm.add_hooks(optimizer)
    mixprec.convert(model, compute=dtype)
    random, steps = np.random.RandomState(seed), len(images.train_x) // batch
    times, accuracies, seconds = [], [], []
    for _ in range(epochs):
        order = random.permutation(len(images.train_x))
        for part in order[: steps * batch].reshape(steps, batch):
            optimizer.lr = arm.lr * (1 + math.cos(math.pi * len(times) / (steps * epochs))) / 2
            times.append(_step(optimizer, model, images.train_x[part], images.train_y[part]))
        accuracies.append(_accuracy(model, images))
        seconds.append(sum(times))
    return Run(
        arm=arm.name,
        settings=arm.settings,
        dtype=dtype,
        seed=seed,
        accuracies=accuracies,
        seconds=seconds,
        milliseconds=1e3 * statistics.median(times[1:] or times),
        skipped=optimizer.skipped,
        loss_scale=optimizer.loss_scale,
    )


def _step(optimizer, model, x, y):
    start = time.perf_counter()
    optimizer.update(lambda: F.softmax_cross_entropy(model(x), y))
    return time.perf_counter() - start


def _accuracy(model, images):
    right = 0
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        for start in range(0, len(images.test_x), _TESTED):
            part = slice(start, start + _TESTED)
            right += int((model(images.test_x[part]).array.argmax(axis=1) == images.test_y[part]).sum())
    return right / len(images.test_x)
