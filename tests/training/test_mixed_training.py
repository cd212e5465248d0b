"""Training on mixed images: captured steps on a stand-in device or a GPU, and what a step learns from."""

import contextlib

import chainer
import numpy as np
import pytest

from mixprec import functions
from mixprec.data.loaders.batch import to_nchw
from mixprec.data.mixing import Mixing
from mixprec.training.updater import CapturedUpdater, TimedUpdater
from tests.graph_capture.captured_runs import FIRST_REPLAY, POISONED, REQUIRED, Run, assert_same, batch
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides

STEPS = 20
MIXING = Mixing(0.8, 1.0, seed=3)


def _softmax(model, x, t, second, share):
    model.loss = functions.softmax_cross_entropy(model.predictor(x), t, smoothing=0.1, mixed=(second, share))
    return model.loss


def _sigmoids(model, x, t, second, share):
    model.loss = functions.binary_cross_entropy(model.predictor(x), t, threshold=0.2, mixed=(second, share))
    return model.loss


def _sent(where, numbers, sizes):
    return {number: tuple(map(where.send, batch(number, sizes[number % len(sizes)]))) for number in numbers}


def _steps(run, batches):
    for number, (x, t) in batches.items():
        run.set_rate(number)
        run.once(*MIXING(x, t, number))


@pytest.mark.slow
@both_sides
@pytest.mark.parametrize(("lossfun", "sizes"), [(_softmax, (4, 3)), (_sigmoids, (4,))])
def test_a_captured_step_is_the_eager_one(side, lossfun, sizes):  # noqa: F811
    """Mixup in some steps, CutMix in others, steps that overflow: one graph for each size, no read, the same bits."""
    kinds = {MIXING.draw(number, 16, 16).share < 1 for number in range(FIRST_REPLAY, STEPS)}
    assert kinds == {True, False}
    assert POISONED & set(range(FIRST_REPLAY, STEPS))
    expected, captured = Run(lossfun=lossfun, side=side), Run(REQUIRED, lossfun=lossfun, side=side)
    _steps(expected, _sent(side, range(STEPS), sizes))
    first = FIRST_REPLAY if len(sizes) == 1 else 2 * FIRST_REPLAY + 2  # a step that overflows is no comparison
    _steps(captured, _sent(side, range(first), sizes))
    rest = _sent(side, range(first, STEPS), sizes)  # sending waits on a GPU
    with side.without_reads():
        _steps(captured, rest)
    assert captured.step.replays >= STEPS - first
    assert captured.step.why_not is None
    assert_same(captured, expected)


class Growing(chainer.dataset.Iterator):
    """Batches of 4 images, of 16 pixels in the first 12 steps and of 24 pixels after them."""

    epoch, epoch_detail, is_new_epoch, delivered = 0, 0.0, False, 0

    def __init__(self, send):
        self._batches = [tuple(map(send, self._made(number))) for number in range(26)]  # on a GPU sending waits

    @property
    def stage(self):
        return int(self.delivered > 12)

    def _made(self, number):
        x, t = batch(number)
        if number >= 12:
            x = np.pad(x, ((0, 0), (0, 0), (4, 4), (4, 4)), mode="reflect")
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)), t

    def __next__(self):
        self.delivered += 1
        return self._batches[self.delivered - 1]


def _grown(side, kind, **keywords):  # noqa: F811
    """Runs 26 steps of an updater; returns the run, the updater, and the shapes that the loss was called with."""
    run = Run(lossfun=_softmax, side=side)
    steps = []

    def lossfun(*arguments):
        steps.append(arguments[0].shape)
        return _softmax(run.model, *arguments)

    updater = kind(Growing(side.send), run.optimizer, converter=to_nchw, loss_func=lossfun, mixing=MIXING, **keywords)
    for number in range(26):
        where = contextlib.nullcontext()
        if kind is TimedUpdater:
            where = side.eagerly()
        elif 8 <= number < 12 or number >= 22:
            where = side.without_reads()
        with where:
            updater.update()
    return run, updater, steps


@both_sides
def test_a_stage_with_larger_images_has_a_graph_of_its_own(side):  # noqa: F811
    """Mixup and CutMix, overflows, another size: the same bits; no read in replays; the old graph's memory is free."""
    expected, _, _ = _grown(side, TimedUpdater)
    captured, updater, calls = _grown(side, CapturedUpdater, required=True)
    assert updater.step.replays >= 26 - 2 * (FIRST_REPLAY + 1)
    assert updater.step.report().count("then a graph") == 1  # that of the first stage is dropped
    assert {shape[2] for shape in calls} == {16, 24}
    assert_same(captured, expected)
