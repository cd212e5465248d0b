"""One linear layer with a squared loss, for which K-FAC's matrices are exact: what a step does is known.

The loss is ``sum (y - t)^2 / (2 n)``; of the full batch the gradient is ``R^T X / n`` with residuals R and inputs X
(with ones for the bias), ``A = X^T X / n`` and ``G = R^T R / n``. Without damping a step of 1 moves the weights by
``G^-1 (R^T X / n) A^-1``, and ``(R^T X / n) A^-1`` is the distance to the least squares solution W*: W - W*. With
orthogonal columns of length sqrt(n) for residuals, G is the identity.
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


def _weights(model):
    arrays = [model.W.array] if model.b is None else [model.W.array, model.b.array[:, None]]
    return np.concatenate(arrays, axis=1).astype(np.float64)


def _model(bias):
    np.random.seed(0)
    model = L.Linear(INPUTS, OUTPUTS, nobias=not bias)
    if bias:
        model.b.array[...] = [0.3, -0.2, 0.1]
    return model


@pytest.mark.parametrize("bias", [True, False])
def test_one_step_is_the_least_squares_solution(bias):
    random = np.random.RandomState(1)
    x = random.normal(size=(IMAGES, INPUTS)).astype(np.float32)
    model = _model(bias)
    inputs = np.concatenate([x, np.ones((IMAGES, int(bias)))], axis=1)
    residuals = np.linalg.qr(random.normal(size=(IMAGES, OUTPUTS)) + 0.3)[0] * np.sqrt(IMAGES)
    t = (inputs @ _weights(model).T - residuals).astype(np.float32)
    before = _weights(model)
    optimizer, _ = wrapped(model, chainer.optimizers.SGD(1.0), damping=1e-10)
    optimizer.update(_squared, model, x, t)
    solution = np.linalg.lstsq(inputs, t.astype(np.float64), rcond=None)[0].T
    assert np.linalg.norm(before - solution) > 0.1 * np.linalg.norm(solution)
    assert_near(_weights(model), solution, 1e-3)
