"""From the gradients of the model, scaled and in 16 bits, to those of the masters: unscaled, in FP32, and checked.

Chainer's own loop (:mod:`~mixprec.optimizer.fallback_form`) and its hooks get these, and its extensions that look at
gradients. The batch unscales by itself.
"""

import numpy as np
from chainer import get_array_types

from mixprec.base.dtypes import FLOAT32, is_half
from mixprec.compat.rebind import rebound
from mixprec.compat.registry import patch
from mixprec.precision.grad_scales import factor_of, grad_scale_of, is_one
from mixprec.precision.master_arrays import OWNER


def gather(pairs, done=()):
    """Unscales gradients of the model into those of the masters. Nothing is read from a device.

    Args:
        pairs: ``[(name, parameter, master)]``.
        done: ids of the parameters whose masters have their gradients already.

    Returns:
        Whether any of them is not finite: a boolean array of shape (), on the device of the first parameter.
    """
    inverses, gathered = {}, []
    with np.errstate(over="ignore", invalid="ignore"):  # that is what is looked for
        for name, param, master in pairs:
            if param.grad is None:
                master.cleargrad()
                continue
            if id(param) not in done:
                unscale_into_master(name, param, master, inverses)
            gathered.append((master, master.grad))
        return _any_not_finite(gathered)


def unscale_into_master(name, param, master, inverses):
    """Writes the unscaled gradient of a parameter into that of its master.

    Args:
        name, param, master: of the parameter, which has a gradient.
        inverses: dict that keeps what gradients are multiplied by, for those of other parameters.
    """
    check_shape(name, param, param.grad)
    if master.grad is None or master.grad.shape != master.shape:
        master.grad = master.xp.empty_like(master.array)
    _unscale(param, master.grad, inverses)


def unscaled(masters):
    """Yields ``(name, gradient)`` of the last backward pass: unscaled, a new array of the dtype of the master."""
    inverses = {}
    for name, param, master in masters.pairs():
        if param.grad is not None:
            yield name, _unscale(param, master.xp.empty_like(master.array), inverses)


def install():
    """Lets extensions of Chainer that look at gradients see them unscaled, once."""
    _extensions.apply()


@patch(
    "chainer.training.extensions.parameter_statistics:ParameterStatistics.__call__",
    "chainer.training.extensions.variable_statistics_plot:VariableStatisticsPlot.__call__",
    when="setup",
)
def _extensions(call):
    """Without it statistics of gradients are multiplied by the loss scale, and may be inf in FP16."""
    return rebound(call, getattr=_unscaled_attribute)


def _unscaled_attribute(owner, name, *default):
    value = getattr(owner, name, *default)
    if name != "grad" or value is None or not hasattr(owner, OWNER):
        return value
    out = owner.xp.empty_like(value, dtype=FLOAT32 if is_half(value.dtype) else value.dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # of a step that was skipped
        return _unscale(owner, out, {})


def not_finite(optimizer):
    """Like :func:`gather`, returns whether anything that hooks of the wrapped optimizer may have spoiled is not finite.

    Those are the gradients of the masters that are updated; their values only if a hook runs after the update, as a
    user may have put inf there for good.
    """
    suspects = []
    for _, _, master in optimizer.target.pairs():
        rule = master.update_rule
        if rule is None or not rule.enabled:
            continue
        if master.grad is not None:
            suspects.append((master, master.grad))
        if optimizer._hookable._post_update_hooks or rule._hookable._post_update_hooks:
            suspects.append((master, master.array))
    return _any_not_finite(suspects)


def _any_not_finite(arrays):
    """Returns whether any of the arrays, given as ``(master, array)``, is not finite, without a read."""
    finite = {}
    for master, array in arrays:
        finite.setdefault(master.device, []).append(master.xp.isfinite(array).all())
    if not finite:
        return np.bool_(False)
    first = next(iter(finite))
    flags = [first.send(device.xp.stack(flags).all()) for device, flags in finite.items()]
    return ~first.xp.stack(flags).all()


def check_shape(name, param, gradient):
    """Raises ValueError if ``gradient`` has another shape than ``param``."""
    if gradient.shape != param.shape:
        raise ValueError(
            f"the gradient of {name} has shape {gradient.shape}, the parameter {param.shape}: "
            "call cleargrads() after a parameter was replaced"
        )


def _unscale(param, out, inverses):
    """Writes the unscaled gradient of ``param`` to ``out``, which it returns."""
    out[...] = param.grad
    factor = factor_of(grad_scale_of(param))
    if not is_one(factor):
        out *= _inverse(factor, param.device, inverses)
    return out


def _inverse(factor, device, inverses):
    """Returns 1 / factor, exact for a power of two, once for each factor and device."""
    key = id(factor), device.name
    if key not in inverses:
        inverses[key] = 1 / (device.send(factor) if isinstance(factor, get_array_types()) else factor)
    return inverses[key]
