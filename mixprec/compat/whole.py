"""Functions of Chainer that consist of several nodes, and may have to be computed as a whole.

A node does not know that it belongs to a loss: ``F.gaussian_nll`` squares a difference by ``x * x``. Each call of such
a function goes through the function given to :func:`compute_by`, if there is one.
"""

from mixprec.compat.hooks import around

_LOSS = "chainer.functions.loss"

_instead = None


def compute_by(instead):
    """Makes ``instead(function, args, kwargs)`` compute these functions from now on."""
    global _instead
    _instead = instead


@around(
    f"{_LOSS}.black_out:black_out",
    f"{_LOSS}.crf1d:{{argmax_,}}crf1d",
    f"{_LOSS}.discriminative_loss:discriminative_margin_based_clustering_loss",
    f"{_LOSS}.vae:{{bernoulli_nll,gaussian_kl_divergence,gaussian_nll}}",
)
def computed_as_a_whole(function, *args, **kwargs):
    """Without it converted models compute the products in losses of several nodes in float16."""
    return function(*args, **kwargs) if _instead is None else _instead(function, args, kwargs)


@around("chainer.functions.math.average:average")
def average_computed_as_a_whole(average, x, axis=None, weights=None, keepdims=False):
    """Without it converted models compute the products in ``F.average`` with weights in float16."""
    if weights is None:  # it is one node
        return average(x, axis, weights, keepdims)
    return computed_as_a_whole(average, x, axis, weights, keepdims)
