"""Lion beside the published program of its authors."""

import numpy as np
import pytest

import mixprec
from tests.optimizer.batch.trust_ratio import GRADIENTS, WEIGHTS, trained

SETTINGS = {"lr": 0.125, "beta1": 0.75, "beta2": 0.875, "weight_decay": 0.25}


def reference(p, gradients, *, lr, beta1, beta2, weight_decay):
    """Chen et al. 2023, program 1: "train"; in float64."""
    p, momentum = np.array(p, np.float64), 0.0
    for g in np.asarray(gradients, np.float64):
        update = np.sign(beta1 * momentum + (1 - beta1) * g)
        momentum = beta2 * momentum + (1 - beta2) * g
        p = p - lr * (update + p * weight_decay)
    return p, momentum


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_follow_the_formula(dtype):
    array = WEIGHTS.astype(dtype)
    gradients = [gradient.astype(dtype) for gradient in GRADIENTS]
    found = trained(mixprec.Lion(**SETTINGS), array, gradients)
    p, momentum = reference(array, gradients, **SETTINGS)
    assert found.dtype == found.update_rule.state["m"].dtype == dtype
    np.testing.assert_allclose(found.array, p, rtol=0, atol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(found.update_rule.state["m"], momentum, rtol=0, atol=4 * np.finfo(dtype).eps)
