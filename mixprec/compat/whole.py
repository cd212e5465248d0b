"""Functions of Chainer that are made of several nodes, and may have to be computed as a whole.

A node does not know that it belongs to a loss: ``F.gaussian_nll`` squares a difference by ``x * x``. Each time such a
function is called, it asks the function given to :func:`compute_by`, if there is one.
"""

import functools

from mixprec.compat.hooks import after_import

_LOSS = "chainer.functions.loss"

_instead = None


def compute_by(instead):
    """Has these functions computed by ``instead(function, args, kwargs)`` from now on."""
    global _instead
    _instead = instead


@after_import(
    f"{_LOSS}.black_out:black_out",
    f"{_LOSS}.crf1d:{{argmax_,}}crf1d",
    f"{_LOSS}.discriminative_loss:discriminative_margin_based_clustering_loss",
    f"{_LOSS}.vae:{{bernoulli_nll,gaussian_kl_divergence,gaussian_nll}}",
)
def computed_as_a_whole(function):
    """Without it converted models compute the products in losses of several nodes in float16."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        return function(*args, **kwargs) if _instead is None else _instead(function, args, kwargs)

    return run


@after_import("chainer.functions.math.average:average")
def average_computed_as_a_whole(average):
    """Without it converted models compute the products in ``F.average`` with weights in float16."""
    whole = computed_as_a_whole(average)

    @functools.wraps(average)
    def run(x, axis=None, weights=None, keepdims=False):  # without weights it is one node
        return (average if weights is None else whole)(x, axis, weights, keepdims)

    return run
