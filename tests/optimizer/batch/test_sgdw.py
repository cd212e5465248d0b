"""SGDW: the formula, PyTorch's momentum with timm's decay, and what it does within mixed precision."""

import numpy as np
import pytest

import mixprec
from tests.optimizer.batch.trust_ratio import GRADIENTS, WEIGHTS, mixed, trained

SETTINGS = {"lr": 0.125, "momentum": 0.75, "weight_decay": 0.25}


def reference(p, gradients, *, lr, momentum, weight_decay, nesterov=False):
    """Loshchilov and Hutter 2019, algorithm 1, with the momentum of torch.optim.SGD; in float64."""
    p, v = np.array(p, np.float64), 0.0
    for g in gradients:
        v = momentum * v + np.asarray(g, np.float64)
        p = p - lr * weight_decay * p - lr * (g + momentum * v if nesterov else v)
    return p


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_follow_the_formula(dtype, nesterov):
    array = WEIGHTS.astype(dtype)
    gradients = [gradient.astype(dtype) for gradient in GRADIENTS]
    found = trained(mixprec.SGDW(**SETTINGS, nesterov=nesterov), array, gradients)
    expected = reference(array, gradients, **SETTINGS, nesterov=nesterov)
    assert found.dtype == found.update_rule.state["v"].dtype == dtype
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=16 * np.finfo(dtype).eps)


def test_nesterov_can_be_switched_on_between_steps():
    optimizer, loss = mixed(mixprec.SGDW(**SETTINGS), WEIGHTS)
    gradients = [gradient.astype(np.float16) for gradient in GRADIENTS]
    optimizer.update(loss, gradients[0])
    optimizer.nesterov = True
    optimizer.update(loss, gradients[1])
    start = WEIGHTS.astype(np.float16).astype(np.float64)
    g, h = (gradient.astype(np.float64) for gradient in gradients[:2])
    once = start * (1 - 0.125 * 0.25) - 0.125 * g
    expected = once * (1 - 0.125 * 0.25) - 0.125 * (h + 0.75 * (0.75 * g + h))
    assert optimizer.report().batched == 1
    np.testing.assert_allclose(optimizer.master(optimizer.target.w0).array, expected, rtol=0, atol=1e-6)
