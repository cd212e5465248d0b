"""The loss scale that each parameter's gradient carries.

Backward passes (:mod:`~mixprec.precision.pass_scales`) leave the scale of a gradient on its parameter, and the step of
the optimizer (:mod:`~mixprec.optimizer.step`) divides by it. It is kept in Chainer's own attribute
``Parameter._loss_scale``, which ``backward(loss_scale=...)`` sets on every parameter it reaches, to ``None`` if the
pass was not scaled. For a loss of :func:`~mixprec.precision.scaled_loss.scaled` it is the factor itself, an array that
may be on a device. So a gradient can be divided by its factor, whatever code multiplied it, and gradients with mixed
factors are recognized:

=================  ==========================================================================================
``NOT_REACHED``    no backward pass since ``cleargrad``: a gradient that the user wrote, or none
``ZERO``           ``zerograd``: to be added to, at any scale
``None``           a backward pass that was not scaled, and needs no scale: all of it in FP32 and BF16
``UNSCALED_FP16``  one that was not scaled, and went through FP16, where small gradients have become 0
a factor           one or several backward passes, all scaled by it
``UsedScale``      a step has used the gradient; it is still there, and still scaled
``MIXED``          backward passes with different factors, or one on top of a written gradient
=================  ==========================================================================================
"""

import itertools
import numbers
import operator

import numpy as np

from mixprec.backends.transfers import to_host
from mixprec.base.announcements import announce

_WAYS_OUT = (
    " (ParallelUpdater: pass one static loss_scale to it and to the optimizer, or use mpiexec and a communicator). "
    'Three ways out: MixedPrecisionOptimizer(..., loss_scale=None); mixprec.convert(model, compute="bfloat16"), which '
    "needs no scale; or call model.cleargrads(), and then, for every loss, optimizer.scale_loss(loss).backward(), as "
    "optimizer.update(lossfun, ...) does"
)


class GradScale(float):
    """A scale that is not a factor. Plain Chainer's optimizers divide by it: it is NaN where that would be wrong."""

    def __new__(cls, name, value):
        scale = super().__new__(cls, value)
        scale._name = name
        return scale

    def __reduce__(self):
        return self._name  # a copy of one of the constants is the constant itself


NOT_REACHED = GradScale("NOT_REACHED", 1.0)
ZERO = GradScale("ZERO", 1.0)
UNSCALED_FP16 = GradScale("UNSCALED_FP16", 1.0)
MIXED = GradScale("MIXED", np.nan)
PENDING = GradScale("PENDING", np.nan)  # during a pass


class UsedScale(float):
    """The scale of gradients that a step has used; its float value, for plain Chainer, is the factor if known.

    Attributes:
        factor: the factor of the gradients.
    """

    def __new__(cls, factor, gradients):
        scale = super().__new__(cls, factor if _is_known(factor) else np.nan)
        scale.factor = factor
        scale._gradients = gradients
        return scale

    def holds_for(self, param):
        """Whether the gradient of ``param`` is still the same array; otherwise the user has written a new one."""
        return self._gradients.get(id(param)) is param.grad


class UnscaledBackward(RuntimeError):
    """A gradient from a ``backward()`` in FP16 without the loss scale, or from several with different scales.

    ``update()`` raises it, and the message names the parameter and the remedies:
    ``optimizer.scale_loss(loss).backward()`` instead of ``loss.backward()``, ``loss_scale=None``, or a model in BF16.

    Example:
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> from mixprec.optimizer import UnscaledBackward
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
        >>> report = mixprec.convert(model)
        >>> model(np.ones((8, 4), np.float32), np.zeros(8, np.int32)).backward()  # not optimizer.backward(loss)
        >>> try:
        ...     optimizer.update()
        ... except UnscaledBackward as error:
        ...     print(str(error)[:77])
        the gradient of /predictor/W comes from a backward() without loss scale, thro
    """


def check_scaled(namedparams, scales, *, expected):
    """Checks that every gradient has one scale, and that every backward pass through FP16 had the loss scale.

    A pass in FP32 or BF16 without the loss scale is only announced.

    Args:
        namedparams: ``[(name, parameter)]`` of the model.
        scales: the scale of each of their gradients.
        expected: whether the optimizer has a loss scale.

    Raises:
        UnscaledBackward: a gradient violates this; names the first such parameter.
    """
    for (name, param), scale in zip(namedparams, scales, strict=True):
        if param.array is None or param.grad is None:
            continue
        if scale is MIXED:
            raise UnscaledBackward(f"the gradient of {name} has parts of different loss scales{_WAYS_OUT}")
        if scale is UNSCALED_FP16 and expected:
            raise UnscaledBackward(
                f"the gradient of {name} comes from a backward() without loss scale, through float16{_WAYS_OUT}"
            )
        if scale is None and expected:
            announce("gradients of a backward() without loss scale are used as they are: it had no float16 part")


def grad_scale_of(param):
    """Returns the scale of the current gradient of ``param``, see the table above."""
    scale = param._loss_scale
    return NOT_REACHED if isinstance(scale, UsedScale) and not scale.holds_for(param) else scale


def factor_of(scale):
    """Returns the factor of a scale, an array of shape () or a float; 1 for a pass that was not scaled."""
    if isinstance(scale, UsedScale):
        return scale.factor
    return 1.0 if scale is None else scale


def is_one(factor):
    """Whether the factor is known to be 1. The value of an array is not read: it may be on a device."""
    return isinstance(factor, (int, float)) and factor == 1


def factor_to_unscale(param):
    """Returns the divisor for the gradient of a parameter: an array of shape (), a float, or ``None`` for 1."""
    factor = factor_of(grad_scale_of(param))
    return None if is_one(factor) or factor is MIXED else factor  # MIXED: no gradient, or it would be refused


def only_scale(scales):
    """Returns the common scale of ``scales``; :data:`MIXED` if they differ, ``NOT_REACHED`` if there are none."""
    if not scales:
        return NOT_REACHED
    return scales[0] if all(map(operator.is_, scales, itertools.repeat(scales[0]))) else MIXED


def merged(scale, other):
    """Returns the scale of the sum of two gradients."""
    if scale is ZERO or scale is PENDING:  # the pass adds the earlier gradient at its end
        return other
    if scale is MIXED or not _same(factor_of(scale), factor_of(other)):
        return MIXED
    return scale if scale is UNSCALED_FP16 else other


def start(model, scales=()):
    """Sets the scales on the parameters of ``model``: existing gradients are used as they are.

    Args:
        model: link.
        scales: initial scales, from :func:`scales_of`.
    """
    for param in model.params():
        param._loss_scale = NOT_REACHED
    for param, scale, used in scales:
        param._loss_scale = UsedScale(scale, {id(param): param.grad}) if used else scale


def clear_initial(params):
    """Clears Chainer's initial gradients, NaN: programs do not call ``cleargrads`` if steps leave zeros."""
    for param in params:
        if param.array is None or (param.grad is not None and bool(to_host(param.xp.isnan(param.grad).all()))):
            param.cleargrad()


def fill(params, factor):
    """Gives zero gradients with the scale ``factor`` to parameters that have none: other processes may have some.

    Args:
        params: parameters of the model.
        factor: the factor of the passes of the step, or ``None``.
    """
    for param in params:
        if param.array is not None and param.grad is None and param.requires_grad:
            param.grad = param.xp.zeros_like(param.array)
            param._loss_scale = NOT_REACHED if factor is None else factor


def scales_of(model):
    """Returns the scales for :func:`start`: copies and pickles of a parameter do not include its scale."""
    scales = [(param, grad_scale_of(param)) for param in model.params() if param.array is not None]
    return [
        (param, factor_of(scale), True) if isinstance(scale, UsedScale) else (param, scale, False)
        for param, scale in scales
    ]


def use(params, scales, gradients):
    """Marks gradients as used, at the end of a step.

    Args:
        params: the parameters of the model, uninitialized ones among them.
        scales: the scale of the gradient of each of them.
        gradients: the gradient of each of them, or ``None``.
    """
    used = {}
    held = dict(zip(map(id, params), gradients, strict=True))
    scale = only_scale(scales)
    is_factor = scale is not None and not isinstance(scale, (GradScale, UsedScale)) and not is_one(scale)
    if is_factor and not any(map(operator.is_, gradients, itertools.repeat(None))):  # in most steps
        scale = UsedScale(scale, held)
        for param in params:
            param._loss_scale = scale
        return
    for param, scale, gradient in zip(params, scales, gradients, strict=True):
        if scale is NOT_REACHED or (isinstance(scale, UsedScale) and scale.holds_for(param)):
            continue
        if gradient is None or isinstance(scale, UsedScale) or is_one(factor_of(scale)):
            param._loss_scale = NOT_REACHED
            continue
        if id(scale) not in used:
            used[id(scale)] = UsedScale(scale, held)
        param._loss_scale = used[id(scale)]


def _same(left, right):
    return left is right or (_is_known(left) and _is_known(right) and bool(left == right))


def _is_known(factor):
    """Whether the host knows a factor without reading from a device."""
    return type(factor) is np.ndarray or isinstance(factor, numbers.Real)
