"""Turns the scaled 16-bit gradients of the model into unscaled FP32 gradients of the masters, and checks them.

They are for Chainer's own loop (:mod:`~mixprec.optimizer.fallback_form`), its hooks, and its extensions that look at
gradients. The batched update unscales by itself.
"""

import numpy as np
from chainer import get_array_types

from mixprec.base.dtypes import FLOAT32, is_half
from mixprec.compat.rebind import rebound
from mixprec.compat.registry import patch
from mixprec.precision.grad_scales import factor_of, grad_scale_of, is_one
from mixprec.precision.master_arrays import OWNER


def gather(pairs, done=()):
    """Writes the unscaled gradients of the model into the masters. Nothing is read from a device.

    Args:
        pairs: ``[(name, parameter, master)]``.
        done: ids of the parameters whose masters have their gradients already.

    Returns:
        Whether any of them is not finite: a boolean array of shape (), on the device of the first parameter.
    """
    inverses, gathered = {}, []
    with np.errstate(over="ignore", invalid="ignore"):  # overflows are detected below
        for name, param, master in pairs:
            if param.grad is None:
                master.cleargrad()
                continue
            if id(param) not in done:
                unscale_into_master(name, param, master, inverses)
            gathered.append((master, master.grad))
        return _any_not_finite(gathered)


def unscale_into_master(name, param, master, inverses):
    """Writes the unscaled gradient of a parameter into the gradient of its master.

    Args:
        name, param, master: name of the parameter, the parameter, which has a gradient, and its master.
        inverses: dict that caches the factors 1 / scale, shared by all parameters.
    """
    check_shape(name, param, param.grad)
    if master.grad is None or master.grad.shape != master.shape:
        master.grad = master.xp.empty_like(master.array)
    _unscale(param, master.grad, inverses)


def unscaled(masters):
    """Yields ``(name, gradient)`` of the last backward pass: unscaled, a new array with the dtype of the master."""
    inverses = {}
    for name, param, master in masters.pairs():
        if param.grad is not None:
            yield name, _unscale(param, master.xp.empty_like(master.array), inverses)


def install():
    """Patches Chainer's extensions that look at gradients, once, so that they see unscaled ones."""
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
    with np.errstate(over="ignore", invalid="ignore"):  # the step may have been skipped
        return _unscale(owner, out, {})


def not_finite(optimizer):
    """Returns whether hooks of the wrapped optimizer have made anything inf or NaN: an array as in :func:`gather`.

    Checks the gradients of the masters that are updated. Their values are checked only if a hook runs after the update,
    as a user may have put inf there on purpose.
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
    """Raises ValueError if the shapes of ``gradient`` and ``param`` differ."""
    if gradient.shape != param.shape:
        raise ValueError(
            f"the gradient of {name} has shape {gradient.shape}, the parameter {param.shape}: "
            "call cleargrads() after replacing a parameter"
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
