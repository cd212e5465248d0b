"""LARS: its formula, its invariances, and what it does within mixed precision."""

import math

import numpy as np
import pytest

import mixprec
from tests.optimizer.batch.trust_ratio import GRADIENTS, WEIGHTS, trained
from tests.optimizer.batch.trust_ratio import LARS_SETTINGS as SETTINGS


def reference(p, gradients, *, lr, momentum, weight_decay, trust_coefficient, eps, adapt=True):
    """You et al. 2017 in float64, element by element."""
    p, v = [float(x) for x in np.ravel(p)], [0.0] * np.size(p)
    for gradient in gradients:
        g = [float(x) for x in np.ravel(gradient)]
        w_norm, g_norm = math.hypot(*p), math.hypot(*g)
        trust = 1.0
        if adapt and w_norm > 0 and g_norm > 0:
            trust = trust_coefficient * w_norm / (g_norm + weight_decay * w_norm + eps)
        v = [momentum * vi + lr * trust * (gi + weight_decay * pi) for vi, gi, pi in zip(v, g, p, strict=True)]
        p = [pi - vi for pi, vi in zip(p, v, strict=True)]
    return np.reshape(p, np.shape(gradients[0]))


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_follow_the_formula(dtype, adapt):
    array = WEIGHTS.astype(dtype)
    gradients = [gradient.astype(dtype) for gradient in GRADIENTS]
    found = trained(mixprec.LARS(**SETTINGS, adapt=adapt), array, gradients)
    expected = reference(array, gradients, **SETTINGS, adapt=adapt)
    assert found.dtype == found.update_rule.state["v"].dtype == dtype
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=32 * np.finfo(dtype).eps)


@pytest.mark.parametrize("factor", [2.0**-100, 2.0**-70, 0.125, 2.0**40, 2.0**100])
def test_steps_do_not_depend_on_the_size_of_the_gradients(factor):
    """Also where squares of float32 numbers would overflow or vanish."""
    make = lambda: mixprec.LARS(lr=2.0, trust_coefficient=0.25, eps=0)  # noqa: E731
    array = WEIGHTS.astype(np.float32)
    expected = trained(make(), array, GRADIENTS)
    found = trained(make(), array, [gradient * factor for gradient in GRADIENTS])
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-6)


@pytest.mark.parametrize(("array", "gradient"), [(0 * WEIGHTS, GRADIENTS[0]), (WEIGHTS, 0 * GRADIENTS[0])])
def test_without_a_norm_there_is_no_trust_ratio(array, gradient):
    settings = {**SETTINGS, "eps": 0.0}
    found = trained(mixprec.LARS(**settings), array, [gradient])
    np.testing.assert_allclose(found.array, array - 2.0 * (gradient + 0.125 * array), rtol=1e-15)
