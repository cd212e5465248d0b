"""LAMB: its formula, its invariances, and what it does within mixed precision."""

import math

import numpy as np
import pytest

import mixprec
from tests.optimizer.batch.trust_ratio import GRADIENTS, WEIGHTS, trained
from tests.optimizer.batch.trust_ratio import LAMB_SETTINGS as SETTINGS


def reference(p, gradients, *, lr, beta1, beta2, eps, weight_decay, adapt=True):
    """You et al. 2020, algorithm 2, in float64, element by element."""
    p = [float(x) for x in np.ravel(p)]
    m, v = [0.0] * len(p), [0.0] * len(p)
    for t, gradient in enumerate(gradients, 1):
        g = [float(x) for x in np.ravel(gradient)]
        m = [beta1 * mi + (1 - beta1) * gi for mi, gi in zip(m, g, strict=True)]
        v = [beta2 * vi + (1 - beta2) * gi**2 for vi, gi in zip(v, g, strict=True)]
        u = [
            mi / (1 - beta1**t) / (math.sqrt(vi / (1 - beta2**t)) + eps) + weight_decay * pi
            for mi, vi, pi in zip(m, v, p, strict=True)
        ]
        w_norm, u_norm = math.hypot(*p), math.hypot(*u)
        trust = w_norm / u_norm if adapt and w_norm > 0 and u_norm > 0 else 1.0
        p = [pi - lr * trust * ui for pi, ui in zip(p, u, strict=True)]
    return np.reshape(p, np.shape(gradients[0]))


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_follow_the_formula(dtype, adapt):
    array = WEIGHTS.astype(dtype)
    gradients = [gradient.astype(dtype) for gradient in GRADIENTS]
    found = trained(mixprec.LAMB(**SETTINGS, adapt=adapt), array, gradients)
    expected = reference(array, gradients, **SETTINGS, adapt=adapt)
    state = found.update_rule.state
    assert found.dtype == state["m"].dtype == state["v"].dtype == dtype
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=32 * np.finfo(dtype).eps)


@pytest.mark.parametrize("weight_decay", [0.0, 0.125])
@pytest.mark.parametrize("factor", [2.0**-50, 0.125, 2.0**40])
def test_steps_do_not_depend_on_the_size_of_the_gradients(factor, weight_decay):
    make = lambda: mixprec.LAMB(lr=0.25, eps=0, weight_decay=weight_decay)  # noqa: E731
    array = WEIGHTS.astype(np.float32)
    expected = trained(make(), array, GRADIENTS)
    found = trained(make(), array, [gradient * factor for gradient in GRADIENTS])
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-6)


def test_zero_weights_take_steps_of_adam():
    found = trained(mixprec.LAMB(lr=0.25, eps=0), 0 * WEIGHTS, GRADIENTS[:1])
    np.testing.assert_allclose(found.array, -0.25 * np.sign(GRADIENTS[0]))


def test_zero_gradients_and_no_decay_leave_the_weights():
    found = trained(mixprec.LAMB(), WEIGHTS, [0 * GRADIENTS[0]] * 2)
    np.testing.assert_array_equal(found.array, WEIGHTS)
