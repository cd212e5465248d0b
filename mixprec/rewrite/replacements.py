"""The attributes of Chainer that are replaced for converted models. Here: attributes of links except ``__call__``.

``convert`` applies them, once in a process, and so does a converted link that is unpickled in another process. Links
and functions that are not converted take the original path: only one look-up of an attribute, or of a thread-local, is
added.
"""

import copy as copying
import types

import chainer.functions as F

from mixprec.base.dtypes import is_half
from mixprec.compat import whole
from mixprec.compat.registry import patch, patch_around
from mixprec.functions import widening
from mixprec.precision import weight_copies, without_masters
from mixprec.precision.conversion_state import active, set_state, state_of
from mixprec.precision.storage import in_float32
from mixprec.rewrite import dispatch, outside, parameters, recurrent_links

_WHEN = "mixprec.convert"
_ROUNDING = 2.0**-8  # largest deviation from a sum of 1 that rounding to 16 bits explains; other sums are not changed


def install(link_class):
    """Replaces what the process has not replaced yet.

    Args:
        link_class: a class of converted links. The ``__call__`` that it inherits, usually from :class:`chainer.Link`,
            is replaced where it is defined: a new class for each link would change the model that users and pickle see.
    """
    owner = next(base for base in link_class.__mro__ if "__call__" in base.__dict__)
    dispatch.call.apply_to(owner, "__call__")
    # Probabilities come before parameters, and so see 16 bits.
    distributions = distribution_parameters, distribution_probabilities, distribution_products
    functions = dispatch.apply, outside.operand, outside.backward_passes
    for each in (*functions, *recurrent_links.PATCHES, serialize, device_resident_accept, copy, *distributions):
        each.apply()
    weight_copies.install()
    whole.compute_by(dispatch.compute_whole)
    widening.install()
    without_masters.look_again()


@patch_around("chainer.link:Link.serialize", when=_WHEN)
def serialize(original, self, serializer):
    """Without it files of converted models are in 16 bits: links save and load float32 in Chainer's order of axes.

    A file of a converted model then looks like one of the plain model, and either loads into the other.
    """
    original(self, serializer if state_of(self) is None else in_float32(serializer))


@patch_around("chainer.link:Link.device_resident_accept", when=_WHEN)
def device_resident_accept(original, self, visitor):
    """Without it filters of converted links lose their order in memory on a new device.

    CuPy and NumPy copy arrays into the order of their axes. Processes that train together send raw memory, and so must
    have one order even of filters that some of them have not used.
    """
    original(self, visitor)
    state = state_of(self)
    if state is not None:
        parameters.order(self, state.conversion.policy.layout == "nhwc")


@patch_around("chainer.link:{Link,Chain,ChainList}.copy", "chainer.sequential:Sequential.copy", when=_WHEN)
def copy(original, self, mode="share"):
    """Without it a copy of a converted model falls apart: each of its links converts inputs and results by itself.

    These methods copy one link at a time, and so would give each a conversion of its own. Parameters that are drawn
    anew have no FP32 bits to keep, and stay in 16 bits.
    """
    result = original(self, mode)
    states = [state_of(link) for link in self.links()]
    if any(states):
        states = states if mode == "share" else copying.deepcopy(states)
        for link, state in zip(result.links(), states, strict=True):
            set_state(link, state)
    if mode == "init":
        weight_copies.narrow(result.params())
    return result


# Distributions of Chainer are used as losses, and computed in float32. Their code mixes logarithms, which are float32,
# with their operands, and asks NumPy for samples, which does not support bfloat16. So the arguments of their
# constructors become float32, and all that they compute follows.
@patch_around(
    "chainer.distributions.{bernoulli:Bernoulli,beta:Beta,categorical:Categorical,cauchy:Cauchy,chisquare:Chisquare,"
    "dirichlet:Dirichlet,exponential:Exponential,gamma:Gamma,geometric:Geometric,gumbel:Gumbel,laplace:Laplace,"
    "log_normal:LogNormal,multivariate_normal:MultivariateNormal,normal:Normal,one_hot_categorical:OneHotCategorical,"
    "pareto:Pareto,poisson:Poisson,uniform:Uniform}.__init__",
    when=_WHEN,
)
def distribution_parameters(original, self, *args, **kwargs):
    """Without it entropies and samples of distributions in converted models fail: their parameters are in 16 bits."""
    scope = active.scope
    if scope is not None:
        args, kwargs = dispatch.plain_arguments(scope, type(self).__name__, args, kwargs)
    original(self, *args, **kwargs)


@patch_around(
    "chainer.distributions.{categorical:Categorical,one_hot_categorical:OneHotCategorical}.__init__", when=_WHEN
)
def distribution_probabilities(original, self, p=None, **kwargs):
    """Without it NumPy and CuPy draw no sample of probabilities in 16 bits, whose sum misses 1 by rounding."""
    if active.scope is not None and p is not None and is_half(p.dtype):
        p = _summing_to_one(p)
    original(self, p, **kwargs)


@patch("chainer.distributions.multivariate_normal:matmul", when=_WHEN)
def distribution_products(module):
    """Without it the matrix products of a MultivariateNormal in a converted model are in 16 bits."""
    return types.SimpleNamespace(matmul=lambda *args, **kwargs: dispatch.compute_whole(module.matmul, args, kwargs))


def _summing_to_one(p):
    """Returns probabilities in float32, divided by their sum where that is nearly 1."""
    total = F.sum(p, axis=-1, keepdims=True)
    is_near = abs(total.array - 1) <= _ROUNDING
    return p / F.broadcast_to(F.where(is_near, total, total.xp.ones_like(total.array)), p.shape)
