"""Scaled backward passes, and the note each leaves on the parameters it reaches: by what its gradient is scaled.

The note is Chainer's own attribute ``Parameter._loss_scale``, which ``backward(loss_scale=...)`` sets on every
parameter it reaches, to ``None`` if the pass was not scaled. For a loss from :func:`scaled` it is the factor itself, an
array that may lie on a device. A gradient can so be divided by what it was multiplied by, whoever did that, and
gradients that were multiplied by different factors can be told from others:

===============  ==========================================================================
``NOT_REACHED``  no backward pass since ``cleargrad``: a gradient that the user wrote, or none
``None``         a backward pass that was not scaled
a factor         one or several backward passes, all scaled by it
``Used``         a step has used the gradient; it is still there, and still scaled
``MIXED``        backward passes with different factors, or one on top of a written gradient
===============  ==========================================================================
"""

import functools
import weakref

import chainer
import numpy as np
from chainer import _backprop


class _Mark(float):
    """A loss scale that nobody has set. As a number it does no harm in an optimizer of plain Chainer."""

    def __new__(cls, name, value):
        mark = super().__new__(cls, value)
        mark._name = name
        return mark

    def __reduce__(self):
        return self._name  # a copy of a mark is the mark itself


NOT_REACHED = _Mark("NOT_REACHED", 1.0)
MIXED = _Mark("MIXED", np.nan)


class Used:
    """The note on a gradient that a step has used.

    Attributes:
        factor: by what it is scaled.
        gradient: the array; another one in its place was written by the user.
    """

    def __init__(self, factor, gradient):
        self.factor = factor
        self.gradient = gradient


WATCHED = "_mixprec_watched"  # attribute of a parameter

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
                self.grad = self.xp.ones_like(self.array)  # otherwise Chainer would multiply by the factor once more
        # An overflow is what the loss scale waits for; NumPy's warnings about it would only repeat it.
        with np.errstate(over="ignore", invalid="ignore"):
            super().backward(retain_grad, enable_double_backprop, self.factor)


def scaled(loss, factor):
    """Returns ``loss * factor`` for ``backward``; a float16 loss becomes float32, in which all factors have room.

    Args:
        loss: variable.
        factor: float32 array of shape () on the device of ``loss``.

    Raises:
        ValueError: the loss is scaled already.
    """
    if isinstance(loss, ScaledLoss):
        raise ValueError("the loss is scaled already")
    if loss.dtype == "float16":
        loss = chainer.functions.cast(loss, "float32")
    result = loss * factor.astype(loss.dtype)
    result.__class__ = ScaledLoss  # the variable that Chainer's graph already knows, with another backward()
    result.factor = factor
    return result


def install():
    """Makes every backward pass keep the notes of watched models, and ``cleargrad`` remove them, once."""
    if hasattr(_backprop._backprop_to_all, "keeps_notes"):
        return
    backprop_to_all = _backprop._backprop_to_all
    cleargrad = chainer.Parameter.cleargrad

    @functools.wraps(backprop_to_all)
    def keeping_notes(outputs, retain_grad, loss_scale):
        before = []
        for model in list(_models):
            for param in model.params(include_uninit=False):
                if param.grad is not None:
                    before.append((param, param._loss_scale))
                    param._loss_scale = NOT_REACHED
        try:
            backprop_to_all(outputs, retain_grad, loss_scale)
        finally:
            for param, note in before:
                if param._loss_scale is NOT_REACHED:
                    param._loss_scale = note
                elif note is MIXED or not _same(factor_of(note), factor_of(loss_scale)):
                    param._loss_scale = MIXED

    @functools.wraps(cleargrad)
    def forgetting(self):
        if hasattr(self, WATCHED):
            self._loss_scale = NOT_REACHED
        cleargrad(self)

    keeping_notes.keeps_notes = True
    _backprop._backprop_to_all = keeping_notes
    chainer.Parameter.cleargrad = forgetting


def watch(model, notes=()):
    """Looks after the notes on the parameters of ``model`` from now on.

    Args:
        model: link. Gradients that it has already are taken as they are.
        notes: the notes to begin with, from :func:`notes_of`.
    """
    _models.add(model)
    for param in model.params():
        setattr(param, WATCHED, True)
        param._loss_scale = NOT_REACHED
    for param, note in notes:
        param._loss_scale = note


def notes_of(model):
    """Returns ``[(parameter, note)]``: a parameter does not take its note with it when it is copied or pickled."""
    return [(param, param._loss_scale) for param in model.params()]


def use(model):
    """Ends a step: the gradients have been used."""
    for param in model.params():
        setattr(param, WATCHED, True)  # also those that were added after setup
        if param.array is None or param.grad is None or is_one(scale_of(param)):
            param._loss_scale = NOT_REACHED
        elif not isinstance(param._loss_scale, Used):
            param._loss_scale = Used(param._loss_scale, param.grad)


def scale_of(param):
    """Returns by what the gradient of ``param`` is multiplied: an array of shape (), or a float."""
    note = param._loss_scale
    if isinstance(note, Used) and note.gradient is not param.grad:
        return 1.0
    return factor_of(note)


def factor_of(note):
    """Returns the factor that a note means, ``None`` being a pass that was not scaled."""
    if isinstance(note, Used):
        return note.factor
    return 1.0 if note is None else note


def is_one(factor):
    """Whether there is nothing to divide by. An array is not looked at: it may be on a device."""
    return isinstance(factor, (int, float)) and factor == 1


def _same(left, right):
    numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    return left is right or (numbers and left == right)
