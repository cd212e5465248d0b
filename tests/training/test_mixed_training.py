"""Training on mixed images: captured steps on a stand-in device or a GPU, and what a step learns from."""

import pytest

from mixprec import functions
from mixprec.data.mixing import Mixing
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


def _steps(run, where, numbers, sizes):
    for number in numbers:
        run.set_rate(number)
        x, t = map(where.send, batch(number, sizes[number % len(sizes)]))
        run.once(*MIXING(x, t, number))


@pytest.mark.core(1)
@both_sides
@pytest.mark.parametrize("lossfun", [_softmax, _sigmoids])
@pytest.mark.parametrize("sizes", [(4,), (4, 3)])
def test_a_captured_step_is_the_eager_one(side, lossfun, sizes):  # noqa: F811
    """Mixup in some steps, CutMix in others, steps that overflow: one graph for each size, no read, the same bits."""
    kinds = {MIXING.draw(number, 16, 16).share < 1 for number in range(FIRST_REPLAY, STEPS)}
    assert kinds == {True, False}
    assert POISONED & set(range(FIRST_REPLAY, STEPS))
    expected, captured = Run(lossfun=lossfun, side=side), Run(REQUIRED, lossfun=lossfun, side=side)
    _steps(expected, side, range(STEPS), sizes)
    first = FIRST_REPLAY if len(sizes) == 1 else 2 * FIRST_REPLAY + 2  # a step that overflows is no comparison
    _steps(captured, side, range(first), sizes)
    with side.without_reads():
        _steps(captured, side, range(first, STEPS), sizes)
    assert captured.step.replays >= STEPS - first
    assert captured.step.why_not is None
    assert_same(captured, expected)
