"""Ten steps of models of the zoo: converted ones stay with plain Chainer in float64.

The measure is the distance of what all weights have moved by, over that itself.
"""

import contextlib
import functools

import numpy as np
import pytest
from chainer import optimizers

import mixprec
from tests.zoo.pairs import SMALL, configured, converted, forward, new, the_zeros_of_mixprec

STEPS, LR = 10, 0.005


@functools.cache
def _moves(case, kind):
    """What each parameter has moved by after ten steps of momentum SGD.

    Args:
        case: of the zoo.
        kind: ``"float64"`` for plain Chainer, or what the model is converted to.
    """
    dtype = np.float64 if kind == "float64" else np.float32
    model = new(case, dtype) if kind == "float64" else converted(case, compute=kind)
    optimizer = optimizers.MomentumSGD(lr=LR)
    wrapped = kind == "float16"
    if wrapped:
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, 128.0)
    optimizer.setup(model)

    def values():
        params = {path: optimizer.master(param) if wrapped else param for path, param in model.namedparams()}
        return np.concatenate([np.array(param.array, np.float64).ravel() for _, param in sorted(params.items())])

    start = values()
    with configured(True, True, dtype):
        for seed in range(1, STEPS + 1):
            model.cleargrads()
            with the_zeros_of_mixprec() if kind == "float64" else contextlib.nullcontext():
                _, _, loss = forward(model, case, seed, dtype)
                (optimizer.scale_loss(loss) if wrapped else loss).backward()
            optimizer.update()
    return values() - start


def _apart(case, kind):
    expected = _moves(case, "float64")
    return float(np.linalg.norm(_moves(case, kind) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_ten_steps_in_float32(case):
    """Within 1e-2: a ReLU that goes the other way in one step moves its gradient by about so much."""
    assert _apart(case, "float32") <= 1e-2


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_ten_steps_in_float16(case):
    """Within 15%; test_models_half.py has the errors of single steps, which are up to a fifth."""
    assert _apart(case, "float16") <= 0.15


@pytest.mark.slow
def test_most_models_stay_much_closer():
    assert np.median([_apart(case, "float32") for case in SMALL.values()]) <= 1e-5
    assert np.median([_apart(case, "float16") for case in SMALL.values()]) <= 1e-2
