"""One linear layer with a squared loss, for which K-FAC's matrices are exact: what a step does is known.

The loss is ``sum (y - t)^2 / (2 n)``; of the full batch the gradient is ``R^T X / n`` with residuals R and inputs X
(with ones for the bias), ``A = X^T X / n`` and ``G = R^T R / n``. Without damping a step of 1 moves the weights by
``G^-1 (R^T X / n) A^-1``, and ``(R^T X / n) A^-1`` is the distance to the least squares solution W*: W - W*.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from tests.kfac.references import assert_near, wrapped

IMAGES, INPUTS, OUTPUTS = 64, 5, 3


def _squared(model, x, t):
    return F.sum((model(x) - t) ** 2) / (2 * len(x))


def _with_ones(x, bias):
    return np.concatenate([x, np.ones((len(x), 1))], axis=1) if bias else x


def _weights(model):
    arrays = [model.W.array] if model.b is None else [model.W.array, model.b.array[:, None]]
    return np.concatenate(arrays, axis=1).astype(np.float64)


def _model(bias):
    np.random.seed(0)
    model = L.Linear(INPUTS, OUTPUTS, nobias=not bias)
    if bias:
        model.b.array[...] = [0.3, -0.2, 0.1]
    return model


def _moved(model, x, t, rule):
    """Runs a step on the full batch, with next to no damping; returns the weights before and after, FP64."""
    before = _weights(model)
    optimizer, _ = wrapped(model, rule, damping=1e-10)
    optimizer.update(_squared, model, x, t)
    return before, _weights(model)


RULES = {"SGD": lambda: chainer.optimizers.SGD(1.0), "MomentumSGD": lambda: chainer.optimizers.MomentumSGD(1.0, 0.0)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_one_step_is_the_least_squares_solution(rule, bias):
    """Where the second moment of the residuals is the identity, as orthogonal columns of length sqrt(n) have it."""
    random = np.random.RandomState(1)
    x = random.normal(size=(IMAGES, INPUTS)).astype(np.float32)
    model = _model(bias)
    inputs = _with_ones(x.astype(np.float64), bias)
    residuals = np.linalg.qr(random.normal(size=(IMAGES, OUTPUTS)) + 0.3)[0] * np.sqrt(IMAGES)
    t = (inputs @ _weights(model).T - residuals).astype(np.float32)
    before, after = _moved(model, x, t, RULES[rule]())
    solution = np.linalg.lstsq(inputs, t.astype(np.float64), rcond=None)[0].T
    assert np.linalg.norm(before - solution) > 0.1 * np.linalg.norm(solution)
    assert_near(after, solution, 1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_one_step_is_newtons_by_the_moment_of_residuals(bias):
    """Any residuals: W - G^-1 (W - W*)."""
    random = np.random.RandomState(2)
    x, t = (random.normal(size=(IMAGES, size)).astype(np.float32) for size in (INPUTS, OUTPUTS))
    model = _model(bias)
    before, after = _moved(model, x, t, RULES["SGD"]())
    inputs = _with_ones(x.astype(np.float64), bias)
    residuals = inputs @ before.T - t
    solution = np.linalg.lstsq(inputs, t.astype(np.float64), rcond=None)[0].T
    expected = np.linalg.solve(residuals.T @ residuals / IMAGES, before - solution)
    assert_near(before - after, expected, 1e-4)


def test_much_damping_is_the_plain_gradient():
    """Divided by the damping: all of it that is left is A^-1 = I / (pi sqrt(d)), G^-1 = I pi / sqrt(d)."""
    random = np.random.RandomState(3)
    x, t = (random.normal(size=(IMAGES, size)).astype(np.float32) for size in (INPUTS, OUTPUTS))
    model = _model(True)
    before, damping = _weights(model), 1e6
    optimizer, _ = wrapped(model, chainer.optimizers.SGD(damping), damping=damping)
    optimizer.update(_squared, model, x, t)
    inputs = _with_ones(x.astype(np.float64), True)
    gradient = (inputs @ before.T - t).T @ inputs / IMAGES
    assert_near(before - _weights(model), gradient, 5e-3)
