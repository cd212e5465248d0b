"""Ten steps of models of the zoo: converted ones stay with plain Chainer in float64.

The measure is the distance of what all weights have moved by, over that itself.
"""

import contextlib
import functools

import numpy as np
import pytest
from chainer import optimizers

import mixprec
from tests.cases import first
from tests.zoo.pairs import SMALL, configured, converted, forward, new, the_zeros_of_mixprec

STEPS, LR = 10, 0.005


def _moves(case, kind):
    """What each parameter has moved by after ten steps of momentum SGD.

    Args:
        case: of the zoo.
        kind: ``"float64"`` for plain Chainer, ``"float16"`` for what is converted to it, under the wrapper.
    """
    wrapped = kind == "float16"
    dtype = np.float32 if wrapped else np.float64
    model = converted(case, compute=kind) if wrapped else new(case, dtype)
    optimizer = optimizers.MomentumSGD(lr=LR)
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
            with contextlib.nullcontext() if wrapped else the_zeros_of_mixprec():
                _, _, loss = forward(model, case, seed, dtype)
                (optimizer.scale_loss(loss) if wrapped else loss).backward()
            optimizer.update()
    return values() - start


@functools.cache
def _apart(case):
    expected = _moves(case, "float64")
    return float(np.linalg.norm(_moves(case, "float16") - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("name", first(12, SMALL))
def test_ten_steps_in_float16(name):
    """Within 15%; test_models_half.py has the errors of single steps, which are up to a fifth."""
    assert _apart(SMALL[name]) <= 0.15


@pytest.mark.slow
def test_most_models_stay_much_closer():
    assert np.median([_apart(case) for case in SMALL.values()]) <= 1e-2
