"""From the gradients of the model, scaled and in 16 bits, to those of the masters: unscaled, in FP32, and checked."""

import chainer
import numpy as np
from chainer import get_array_types

from mixprec import arguments
from mixprec.dtypes import BFLOAT16
from mixprec.optimizer.scaled_loss import MIXED, is_one, scale_of

_PARALLEL = " (ParallelUpdater: pass one static loss_scale to it and to the optimizer)"


class UnscaledBackward(RuntimeError):
    """A gradient from a ``backward()`` without the loss scale, or from several with different ones."""


def check_scaled(namedparams, notes, *, scales):
    """Makes sure that every gradient has one scale, and that no backward pass went without the loss scale.

    Args:
        namedparams: ``[(name, parameter)]`` of the model.
        notes: the note on each of them.
        scales: whether there is a loss scale at all.

    Raises:
        UnscaledBackward: naming the first parameter with another gradient.
    """
    for (name, param), note in zip(namedparams, notes, strict=True):
        if (note is MIXED or (note is None and scales)) and param.array is not None and param.grad is not None:
            what = (
                "has parts of different loss scales" if note is MIXED else "comes from a backward() without loss scale"
            )
            raise UnscaledBackward(
                f"the gradient of {name} {what}: call model.cleargrads(), and then, for every loss, "
                f"optimizer.scale_loss(loss).backward(); or optimizer.update(lossfun, ...){_PARALLEL}"
            )


def check_loss(loss: chainer.Variable) -> None:
    """Makes sure that a loss can be scaled: ``backward`` of several elements would do nothing, in silence.

    Raises:
        TypeError: it is not a variable of floating-point numbers.
        ValueError: it has not exactly one element.
    """
    arguments.instance("loss", loss, chainer.Variable, "a chainer.Variable")
    if loss.array is None:
        raise ValueError("loss must have one element; found a variable that has no array")
    if loss.dtype.kind != "f" and loss.dtype != BFLOAT16:
        raise TypeError(f"loss must be floating-point numbers; found {loss.dtype}")
    if loss.size != 1:
        raise ValueError(f"loss must have one element, as F.sum(loss) and F.mean(loss) have; found shape {loss.shape}")


def gather(pairs):
    """Unscales gradients of the model into those of the masters. Nothing is read from a device.

    Args:
        pairs: ``[(name, parameter, master)]``.

    Returns:
        Whether any of them is not finite: a boolean array of shape (), on the device of the first parameter.
    """
    inverses, gathered = {}, []
    with np.errstate(over="ignore", invalid="ignore"):  # that is what is looked for
        for name, param, master in pairs:
            if param.grad is None:
                master.cleargrad()
                continue
            check_shape(name, param, param.grad)
            if master.grad is None or master.grad.shape != master.shape:
                master.grad = master.xp.empty_like(master.array)
            gathered.append((master, _unscale(param, master.grad, inverses)))
        return _any_not_finite(gathered)


def unscaled(masters):
    """Yields ``(name, gradient)`` of the last backward pass: unscaled, a new array of the dtype of the master."""
    inverses = {}
    for name, param, master in masters.pairs():
        if param.grad is not None:
            yield name, _unscale(param, master.xp.empty_like(master.array), inverses)


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
    factor = scale_of(param)
    if not is_one(factor):
        out *= _inverse(factor, param.device, inverses)
    return out


def _inverse(factor, device, inverses):
    """Returns 1 / factor, exact for a power of two, once for each factor and device."""
    key = id(factor), device.name
    if key not in inverses:
        inverses[key] = 1 / (device.send(factor) if isinstance(factor, get_array_types()) else factor)
    return inverses[key]
