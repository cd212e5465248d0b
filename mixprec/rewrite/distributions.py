"""Distributions of Chainer in converted models: as losses, they are computed in float32.

Their code mixes logarithms, which are float32, with what they are taken of, and asks NumPy for samples, which knows no
bfloat16. So what their constructors get becomes float32, and all that they compute follows.
:func:`mixprec.rewrite.replacements.install` applies the replacements.
"""

import types

import chainer.functions as F

from mixprec.base.dtypes import is_half
from mixprec.compat.registry import patch, patch_around
from mixprec.rewrite import dispatch
from mixprec.rewrite.state import active

_WHEN = "mixprec.convert"
_ROUNDING = 2.0**-8  # by which a sum may miss 1 since its numbers were rounded to 16 bits; others are meant as they are


@patch_around(
    "chainer.distributions.{bernoulli:Bernoulli,beta:Beta,categorical:Categorical,cauchy:Cauchy,chisquare:Chisquare,"
    "dirichlet:Dirichlet,exponential:Exponential,gamma:Gamma,geometric:Geometric,gumbel:Gumbel,laplace:Laplace,"
    "log_normal:LogNormal,multivariate_normal:MultivariateNormal,normal:Normal,one_hot_categorical:OneHotCategorical,"
    "pareto:Pareto,poisson:Poisson,uniform:Uniform}.__init__",
    when=_WHEN,
)
def parameters(original, self, *args, **kwargs):
    """Without it entropies and samples of distributions in converted models fail: their parameters are in 16 bits."""
    scope = active.scope
    if scope is not None:
        args, kwargs = dispatch.plain_arguments(scope, type(self).__name__, args, kwargs)
    original(self, *args, **kwargs)


@patch_around(
    "chainer.distributions.{categorical:Categorical,one_hot_categorical:OneHotCategorical}.__init__", when=_WHEN
)
def probabilities(original, self, p=None, **kwargs):
    """Without it NumPy and CuPy draw no sample of probabilities in 16 bits, whose sum misses 1 by rounding."""
    if active.scope is not None and p is not None and is_half(p.dtype):
        p = _summing_to_one(p)
    original(self, p, **kwargs)


@patch("chainer.distributions.multivariate_normal:matmul", when=_WHEN)
def products(module):
    """Without it the matrix products of a MultivariateNormal in a converted model are in 16 bits."""
    return types.SimpleNamespace(matmul=lambda *args, **kwargs: dispatch.compute_whole(module.matmul, args, kwargs))


def _summing_to_one(p):
    """Returns probabilities in float32, divided by their sum where that is nearly 1."""
    total = F.sum(p, axis=-1, keepdims=True)
    is_near = abs(total.array - 1) <= _ROUNDING
    return p / F.broadcast_to(F.where(is_near, total, total.xp.ones_like(total.array)), p.shape)


REPLACEMENTS = (parameters, probabilities, products)  # the second one comes before the first, and sees 16 bits
