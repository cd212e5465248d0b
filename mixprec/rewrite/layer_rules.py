"""Rules on NHWC: layers with weights, batch normalizations, and the additions and ReLUs that are computed with these.

A rule is a function of ``(scope, node, inputs)``: a :class:`~mixprec.rewrite.scope.Scope`, a function node of Chainer
that has not been applied, and its inputs. It returns the outputs, or ``None`` if it does not fit, for
example for images of float64. :func:`mixprec.rewrite.dispatch.apply` calls it.
"""

import functools
import weakref

import chainer
from chainer.functions.activation.relu import ReLU
from chainer.functions.connection.convolution_2d import Convolution2DFunction
from chainer.functions.connection.deconvolution_2d import Deconvolution2DFunction
from chainer.functions.connection.embed_id import EmbedIDFunction
from chainer.functions.connection.linear import LinearFunction
from chainer.functions.math.basic_math import Add
from chainer.functions.normalization.batch_normalization import BatchNormalization, FixedBatchNormalization

from mixprec.backends import primitives_of
from mixprec.backends.geometry import BatchNorm, Following
from mixprec.base.dtypes import FLOAT32, STORAGE_DTYPES
from mixprec.functions.batch_normalization import BatchNormalization as OurBatchNormalization
from mixprec.functions.batch_normalization import FixedBatchNormalization as OurFixedBatchNormalization
from mixprec.functions.convolution import Convolution2D, convolution_of, form_of
from mixprec.functions.deconvolution import Deconvolution2D
from mixprec.functions.layout import lay_out
from mixprec.functions.linear import EmbedID, Linear
from mixprec.functions.node import as_nhwc, chainer_apply, dense
from mixprec.functions.relu import Addition
from mixprec.functions.relu import ReLU as OurReLU
from mixprec.functions.stochastic_depth import StochasticDepth, row_factors
from mixprec.rewrite.between_layers import elementwise, max_pooling
from mixprec.rewrite.deferred import Deferred, can_follow, compute, taken
from mixprec.rewrite.dtype_rules import CHAINERS_OWN, whose
from mixprec.rewrite.memory_order import in_storage_dtype, is_channels_last, is_dense, is_part, run_in_order_of
from mixprec.rewrite.parameters import ranks_of

_STEM = 3  # channels of an image; a Tensor core wants a multiple of 8, or 4 of the first layer


class Convolved:
    """The result of a convolution, in the call that has computed it.

    Args:
        y: variable, the result.
        sums: array of the sums for the batch normalization after it, or ``None`` if it took none.
        site: :class:`~mixprec.rewrite.fusions.ConvolutionSite`.
    """

    def __init__(self, y, sums, site):
        self.sums = sums
        self.site = site
        self._variable, self._array = weakref.ref(y), weakref.ref(y.array)

    def is_of(self, x):
        """Whether a variable is the result, and has its array still."""
        return self._variable() is x and self._array() is x.array


def _convolution(scope, node, inputs):
    x, W, *b = inputs
    if node.cover_all or not _are_images_and_filters(inputs):
        return None
    if x.shape[1] != W.shape[1] * node.groups and (_is_computed(x) or not is_channels_last(x)):
        return None  # Chainer's own error; images of a loader may be padded
    padded = _STEM + 1 if x.shape[1] == W.shape[1] == _STEM else None
    geometry, following = _geometry(node), None
    W, b = _filters(scope, W), scope.to_compute(b)
    site = None if b else scope.convolution_site()
    if site is not None:
        following, site.following = site.following, None
    form = geometry
    if W.shape[1] <= _STEM + 1 and geometry.stride != (1, 1):
        form = form_of(as_nhwc(chainer.as_array(x)), W.shape, scope.compute, geometry)
    if form is geometry:
        x = scope.images(x, scope.compute, padded)
    else:
        x = scope.images_of_form(x, scope.compute, form)
    ours = Convolution2D(form, relu=False, statistics=following or False)
    y = ours.run(x, W, *b)
    if site is not None:
        scope.convolved[id(y)] = Convolved(y, ours.sums, site)
    return (y,)


def _deconvolution(scope, node, inputs):
    x, W, *b = inputs
    if not _are_images_and_filters(inputs):
        return None
    ours = Deconvolution2D(_geometry(node), None if node.outh is None else (node.outh, node.outw))
    return (ours.run(scope.images(x, scope.compute), _filters(scope, W), *scope.to_compute(b)),)


def _is_computed(x):
    return isinstance(x, chainer.Variable) and x.creator_node is not None


def _are_images_and_filters(inputs):
    return inputs[0].ndim == inputs[1].ndim == 4 and all(x.dtype in STORAGE_DTYPES for x in inputs)


def _geometry(node):
    return _geometry_of((node.sy, node.sx), (node.ph, node.pw), (node.dy, node.dx), node.groups)


@functools.cache
def _geometry_of(stride, pad, dilate, groups):
    return convolution_of(Convolution2D.name, stride, pad, dilate, groups)


def _filters(scope, W):
    if not is_channels_last(W):
        if isinstance(W, chainer.Parameter):
            lay_out(W)  # Chainer and CuPy copy arrays into the order of their axes: Link.copy, to_device, pickle
        else:
            W = scope.images(W)
    return scope.to_compute((W,))[0]


def _linear(scope, node, inputs):
    if inputs[0].ndim != 2 or not all(x.dtype in STORAGE_DTYPES for x in inputs):
        return None
    return Linear().apply(scope.to_compute(inputs))


def _embed_id(scope, node, inputs):
    t, W = inputs
    if t.dtype.kind != "i" or not t.ndim or W.ndim != 2 or W.dtype not in STORAGE_DTYPES:
        return None
    return EmbedID(node.ignore_label).apply((t, *scope.to_compute((W,))))


def _batch_normalization(scope, node, inputs):
    ranks, is_chainers = None, node._impl_selector is CHAINERS_OWN
    if not is_chainers:
        ranks = ranks_of(node, inputs[0], scope.link_name)
        if ranks is None:
            _leave_to_chainer(scope, whose(node))
            return None
        if scope.conversion.on_example:
            ranks = None  # other processes may have none, and its statistics are forgotten
    x, *rest = _normalized(scope, node, inputs)
    if x is None:
        return None
    running = None if node.running_mean is None else (node.running_mean, node.running_var)
    if running and not all(array.dtype == FLOAT32 and array.flags.c_contiguous for array in running):
        return None
    if ranks is not None:  # now, in the order of the model: what is fused may be computed later, not so in each process
        with chainer.using_device(x.device):
            ranks.statistics(primitives_of(x.array), dense(as_nhwc(x.array)))
    eps, decay, convolved = float(node.eps), float(node.decay), scope.convolved.get(id(x))
    if not is_chainers or (convolved is not None and not convolved.is_of(x)):
        convolved = None

    def build(relu, add, count, factors):
        sums = None
        if convolved is not None:
            convolved.site.following, sums = Following(relu, add), convolved.sums
        return OurBatchNormalization(BatchNorm(eps, decay, relu), running if count else None, sums, ranks, factors)

    return (scope.normalization(x, rest, build, running or (), True, not is_chainers),)


def _fixed_batch_normalization(scope, node, inputs):
    *inputs, mean, var = inputs
    x, *rest = _normalized(scope, node, inputs)
    if x is None or any(map(_wants_gradient, (mean, var))):  # Chainer's has gradients of statistics
        return None
    statistics = tuple(dense(chainer.as_array(each).astype(FLOAT32, copy=False)) for each in (mean, var))
    eps = float(node.eps)

    def build(relu, add, count, factors):
        return OurFixedBatchNormalization(BatchNorm(eps, relu=relu), statistics)

    return (scope.normalization(x, rest, build, statistics, False),)


def _leave_to_chainer(scope, why):
    site = scope.normalization_site()
    if site is not None:
        site.give_up(why)
    if scope.trace is not None:
        scope.trace.note_normalization(scope.link_name, "")


def _wants_gradient(x):
    return chainer.config.enable_backprop and isinstance(x, chainer.Variable) and x.requires_grad


def _normalized(scope, node, inputs):
    """Returns the input of a batch normalization over all axes but the channels, and float32 gamma and beta."""
    x, gamma, beta = inputs
    axes = {2: (0,), 4: (0, 2, 3)}.get(x.ndim)
    is_known = axes is not None and gamma.ndim == 1 and node.axis in (None, axes)
    if not (is_known and all(each.dtype in STORAGE_DTYPES for each in inputs)):
        return None, None, None
    gamma, beta = [each if each.dtype == FLOAT32 else scope.cast(each, FLOAT32) for each in (gamma, beta)]
    if x.ndim == 4 and not is_channels_last(x):
        x = scope.images(x)
    if not (isinstance(x, chainer.Variable) or chainer.config.enable_backprop):
        x = x.copy(order="K")  # the user may fill the same buffer again before what is deferred is computed
    return chainer.as_variable(x), gamma, beta


def _relu(scope, node, inputs):
    (x,) = inputs
    if can_follow(x, "ReLU"):
        x.takers.append("ReLU")
        return (Deferred(scope, x.normalization, x, "ReLU"),)
    if type(x) is Deferred:
        taken(x, "ReLU")
    if not (x.dtype in STORAGE_DTYPES and is_dense(x)):
        return None
    return (run_in_order_of(x, OurReLU(), x),)


def _stochastic_depth(scope, node, inputs):
    (x,) = inputs
    name = StochasticDepth.__name__
    if can_follow(x, name):
        x.takers.append(name)
        factors = row_factors(x.normalization.x.array, node.ratio)
        return (Deferred(scope, x.normalization, x, name, factors),)
    if type(x) is Deferred:
        taken(x, name)
    return chainer_apply(node, (scope.images(x) if is_part(x) else x,))


def _add(scope, node, inputs):
    x, other = inputs
    if not _can_take(x, other) or (type(other) is Deferred and other.chain):
        x, other = other, x
    can_take = _can_take(x, other)
    for each in inputs:
        if type(each) is Deferred:
            each.takers.append("Add")
    if can_take:
        return (Deferred(scope, x.normalization, x, "Add", other),)
    for each in inputs:
        if type(each) is Deferred:
            compute(each)
    alike = x.ndim == other.ndim == 4 and x.shape == other.shape and in_storage_dtype(x, other)
    if alike and (is_channels_last(x) or is_channels_last(other)):
        inputs = _cast_alike(scope, [scope.images(each) for each in inputs])
        return (Addition().run(*inputs),)
    return elementwise(scope, node, inputs)


def _can_take(x, other):
    """Whether the sum of ``x``, a deferred batch normalization, with ``other`` can be deferred as well."""
    if not can_follow(x, "Add") or not isinstance(other, chainer.Variable):
        return False
    return other is not x and other.shape == x.shape and other.dtype == x.dtype


def _cast_alike(scope, inputs):
    """Returns inputs in one storage dtype, float32 if they differ, as the rule for Chainer's addition has it."""
    return inputs if inputs[0].dtype == inputs[1].dtype else [scope.cast(x, FLOAT32) for x in inputs]


RULES = {
    Add: _add,
    BatchNormalization: _batch_normalization,
    Convolution2DFunction: _convolution,
    Deconvolution2DFunction: _deconvolution,
    EmbedIDFunction: _embed_id,
    FixedBatchNormalization: _fixed_batch_normalization,
    LinearFunction: _linear,
    ReLU: _relu,
    StochasticDepth: _stochastic_depth,
}
TAKING_DEFERRED = (_add, _relu, _stochastic_depth, max_pooling)
TAKING_FILTERS = (_convolution, _deconvolution)  # they lay filters out before they cast them
