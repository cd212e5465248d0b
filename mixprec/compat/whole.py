"""Functions of Chainer that are made of several nodes, and which somebody may want to compute as a whole.

A node does not know that it belongs to a loss: ``F.gaussian_nll`` squares a difference by ``x * x``.
"""

import functools

from mixprec.compat import hooks

_LOSSES = {
    "chainer.functions.loss.black_out": ("black_out",),
    "chainer.functions.loss.crf1d": ("argmax_crf1d", "crf1d"),
    "chainer.functions.loss.discriminative_loss": ("discriminative_margin_based_clustering_loss",),
    "chainer.functions.loss.vae": ("bernoulli_nll", "gaussian_kl_divergence", "gaussian_nll"),
}

_instead = None


def compute_by(instead):
    """Has these functions computed by ``instead(function, args, kwargs)`` from now on, whoever calls them."""
    global _instead
    _instead = instead


@hooks.after_import(*_LOSSES)
def computed_as_a_whole(module):
    """Makes losses that are made of several nodes ask who computes them."""
    for name in _LOSSES[module.__name__]:
        setattr(module, name, _asking(getattr(module, name)))


@hooks.after_import("chainer.functions.math.average")
def average_computed_as_a_whole(module):
    """The same for ``F.average`` with weights; without them it is one node."""
    average = module.average
    whole = _asking(average)

    @functools.wraps(average)
    def run(x, axis=None, weights=None, keepdims=False):
        return (average if weights is None else whole)(x, axis, weights, keepdims)

    module.average = run


def _asking(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        return function(*args, **kwargs) if _instead is None else _instead(function, args, kwargs)

    return run
