"""From the gradients of the model, scaled and in FP16, to those of the masters: unscaled, in FP32, and checked."""

import numpy as np
from chainer import get_array_types

from mixprec.optimizer.scaled_loss import NOT_REACHED


class UnscaledBackward(RuntimeError):
    """A gradient that came from a ``backward()`` without the loss scale."""


def check_scaled(masters):
    """Makes sure that no backward pass went without the loss scale.

    Raises:
        UnscaledBackward: naming the first parameter with such a gradient.
    """
    for name, param, _ in masters.pairs():
        if param._loss_scale is None and param.grad is not None:
            raise UnscaledBackward(
                f"the gradient of {name} comes, at least in part, from a backward() that was not scaled or was scaled "
                "for another step: call optimizer.scale_loss(loss).backward(), or optimizer.update(lossfun, ...), and "
                "model.cleargrads() before it (ParallelUpdater: pass one static loss_scale to it and to the optimizer)"
            )


def gather(masters):
    """Unscales the gradients of the model into those of the masters. Nothing is read from a device.

    Returns:
        Whether any of them is not finite: a boolean array of shape (), on the device of the first parameter.
    """
    finite = {}
    for _, _, master, gradient in _unscaled(masters, into_masters=True):
        if gradient is None:
            master.cleargrad()
        else:
            finite.setdefault(master.device, []).append(master.xp.isfinite(gradient).all())
    return any_not(finite)


def unscaled(masters):
    """Yields ``(name, gradient)``: the gradient of the last backward pass, unscaled, as a new float32 array."""
    for name, _, _, gradient in _unscaled(masters, into_masters=False):
        if gradient is not None:
            yield name, gradient


def not_finite(masters):
    """Like :func:`gather`, returns whether any gradient or value of the masters is not finite, as they are now."""
    finite = {}
    for _, _, master in masters.pairs():
        for array in (master.array, master.grad):
            if array is not None:
                finite.setdefault(master.device, []).append(master.xp.isfinite(array).all())
    return any_not(finite)


def any_not(finite):
    """Combines lists of flags by device into one array: whether any of them is false."""
    if not finite:
        return np.bool_(False)
    first = next(iter(finite))
    flags = [first.send(device.xp.stack(flags).all()) for device, flags in finite.items()]
    return ~first.xp.stack(flags).all()


def _unscaled(masters, *, into_masters):
    inverses = {}
    for name, param, master in masters.pairs():
        if param.grad is None:
            yield name, param, master, None
            continue
        if not into_masters:
            out = master.xp.empty_like(master.array)
        else:
            if master.grad is None:
                master.grad = master.xp.empty_like(master.array)
            out = master.grad
        out[...] = param.grad
        scale = param._loss_scale
        if scale is NOT_REACHED and not into_masters:
            scale = master.gradient_scale  # of the step that has used the gradient already
        if into_masters:
            master.gradient_scale = scale
        if scale is not None and scale is not NOT_REACHED:
            out *= _inverse(scale, param.device, inverses)
        yield name, param, master, out


def _inverse(scale, device, inverses):
    """Returns 1 / scale, exact for a power of two, once for each scale and device."""
    key = id(scale), device.name
    if key not in inverses:
        here = device.send(scale) if isinstance(scale, get_array_types()) else scale
        inverses[key] = device.xp.float32(1) / here
    return inverses[key]
