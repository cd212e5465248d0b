"""Scaled backward passes, and the note each leaves on the parameters it reaches: by what its gradient is scaled.

The note is Chainer's own attribute ``Parameter._loss_scale``, which ``backward(loss_scale=...)`` sets on every
parameter it reaches, to ``None`` if the pass was not scaled. Here its value is the factor itself, an array that may lie
on a device, so that each gradient is divided by what it was multiplied by, whoever did that.
"""

import weakref

import chainer
import numpy as np


class _NotReached(float):
    """A loss scale of 1 that no backward pass has set."""


NOT_REACHED = _NotReached(1.0)

_models = weakref.WeakSet()


class ScaledLoss(chainer.Variable):
    """A loss that has been multiplied by ``factor``; its ``backward`` notes that on the parameters it reaches."""

    def backward(self, retain_grad=False, enable_double_backprop=False, loss_scale=None):
        """Runs :meth:`chainer.Variable.backward`.

        Raises:
            ValueError: ``loss_scale`` is given, though the loss is scaled already.
        """
        if loss_scale is not None:
            raise ValueError("backward(loss_scale=...) of a loss that scale_loss() has scaled already")
        if self.array.size == 1 and self.grad_var is None:
            with chainer.using_device(self.device):
                self.grad = self.xp.ones_like(self.array)
        already = [
            param
            for model in list(_models)
            for param in model.params(include_uninit=False)
            if param._loss_scale is not self.factor and param._loss_scale is not NOT_REACHED and param.grad is not None
        ]
        # An overflow is what the loss scale waits for; NumPy's warnings about it would only repeat it.
        with np.errstate(over="ignore", invalid="ignore"):
            super().backward(retain_grad, enable_double_backprop, self.factor)
        for param in already:
            if param._loss_scale is self.factor:
                param._loss_scale = None  # added to a gradient of another scale: of no scale at all


def scaled(loss, factor):
    """Returns ``loss * factor`` for ``backward``; a float16 loss becomes float32, in which all factors have room.

    Args:
        loss: variable.
        factor: float32 array of shape () on the device of ``loss``.
    """
    if isinstance(loss, ScaledLoss):
        raise ValueError("the loss is scaled already")
    if loss.dtype == "float16":
        loss = chainer.functions.cast(loss, "float32")
    result = loss * factor.astype(loss.dtype)
    result.__class__ = ScaledLoss  # the variable that Chainer's graph already knows, with another backward()
    result.factor = factor
    return result


def watch(model):
    """Looks after the notes on the parameters of ``model``, which no backward pass has reached yet."""
    _models.add(model)
    forget(model)


def forget(model):
    """Removes the notes: the gradients have been used."""
    for param in model.params():
        param._loss_scale = NOT_REACHED
