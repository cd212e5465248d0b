"""Beside the published definitions of kfac-pytorch (github.com/gpauloski/kfac-pytorch, MIT), written down in FP64.

From its ``kfac/layers/utils.py``: ``get_cov(a) = a^T a / rows``, and ``append_bias_ones``. From ``modules.py``: of a
linear layer A and G are that of inputs, with ones for a bias, and of gradients; of a convolution those of patches, and
of gradients at all positions, both divided by the number of positions of an image before. From ``inverse.py``: the
gradient is ``inv(G + damping I) gradient inv(A + damping I)``; columns of the gradient are in the order (C, R, S).

With n images and T positions of each it has A = sum p p^T / (n T^3) and G = sum g g^T / (n T^3), mixprec
A = sum p p^T / n and G = n^2 sum g g^T / (n T): A is T^3 times that of kfac-pytorch, and G n^2 T^2 times. Of a linear
layer T is 1. mixprec distributes its damping by traces, so that the damping of kfac-pytorch's formula is another one
for each factor.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from tests.kfac import references
from tests.kfac.networks import batch, conv, loss
from tests.kfac.references import assert_near, first_step, pair, wrapped

LAYERS = {
    "linear": lambda: L.Linear(None, 6),
    "linear without bias": lambda: L.Linear(None, 6, nobias=True),
    "conv": lambda: conv(5, 3),
    "conv without bias": lambda: conv(5, 3, nobias=True),
    "padding": lambda: conv(5, 3, pad=1),
    "stride": lambda: conv(5, (3, 2), stride=(2, 1), pad=(1, 0)),
}


def get_cov(rows):
    """utils.py: second moment of the rows of a matrix, symmetric by construction."""
    cov = rows.T @ (rows / len(rows))
    return (cov + cov.T) / 2


def append_bias_ones(rows):
    """utils.py: a last column of ones."""
    return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)


def factors(link, x, dy):
    """modules.py: ``get_a_factor`` and ``get_g_factor``."""
    if isinstance(link, L.Linear):
        a, spatial_size = x.reshape(len(x), -1), 1
        g = dy
    else:
        (r, s), (sh, sw), (ph, pw) = link.W.shape[2:], pair(link.stride), pair(link.pad)
        padded = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
        unfolded = np.lib.stride_tricks.sliding_window_view(padded, (r, s), axis=(2, 3))[:, :, ::sh, ::sw]
        spatial_size = unfolded.shape[2] * unfolded.shape[3]
        a = unfolded.transpose(0, 2, 3, 1, 4, 5).reshape(-1, x.shape[1] * r * s)
        g = dy.transpose(0, 2, 3, 1).reshape(-1, dy.shape[1])
    if link.b is not None:
        a = append_bias_ones(a)
    return get_cov(a / spatial_size), get_cov(g / spatial_size), spatial_size


def columns(link):
    """Returns where each column (R, S, C), and the bias, is among those of kfac-pytorch, (C, R, S)."""
    count = link.W[0].size
    order = np.arange(count)
    if link.W.ndim == 4:
        order = order.reshape(link.W.shape[1:]).transpose(1, 2, 0).reshape(-1)
    return order if link.b is None else np.append(order, count)


@pytest.mark.parametrize("name", LAYERS)
def test_factors_and_gradients(name):
    """The damping of mixprec's factors, in the units of kfac-pytorch's, in ``inv(A + damping I)``."""

    def build():
        np.random.seed(0)
        model = chainer.Sequential(LAYERS[name](), F.tanh, L.Linear(None, 4))
        model(batch(0)[0])
        return model

    x, t = batch(0)
    plain, images, damping = references.doubled(build()), len(x), 0.1
    calls, gradients = references.gradients_of(plain, lambda model: loss(model, x.astype(np.float64), t))
    link = calls["/0"][0].link
    a, g, positions = factors(*calls["/0"][0])
    found = first_step(*wrapped(build(), damping=damping), loss, x, t)
    order, (of_inputs, of_gradients) = columns(link), found.moments["/0/W"]
    assert_near(np.tril(of_inputs[0]), np.tril(positions**3 * a[np.ix_(order, order)]), 1e-5)
    assert_near(np.tril(of_gradients[0]), np.tril(images**2 * positions**2 * g), 1e-5)
    of_a, of_g = positions**3, images**2 * positions**2
    ratio = np.sqrt((np.trace(of_a * a) / len(a)) / (np.trace(of_g * g) / len(g)))
    a_inv = np.linalg.inv(a + ratio * np.sqrt(damping) / of_a * np.eye(len(a)))
    g_inv = np.linalg.inv(g + np.sqrt(damping) / ratio / of_g * np.eye(len(g)))
    gradient = gradients["/0/W"].reshape(len(g), -1)
    if link.b is not None:
        gradient = np.concatenate([gradient, gradients["/0/b"][:, None]], axis=1)
    expected = g_inv @ gradient @ a_inv / (of_a * of_g)
    assert_near(found.gradients["/0/W"], expected[:, : link.W[0].size].reshape(link.W.shape), 1e-4)
    if link.b is not None:
        assert_near(found.gradients["/0/b"], expected[:, -1], 1e-4)
