"""Scaled backward passes, and the note each leaves on the parameters it reaches: by what its gradient is scaled.

The note is Chainer's own attribute ``Parameter._loss_scale``, which ``backward(loss_scale=...)`` sets on every
parameter it reaches, to ``None`` if the pass was not scaled. For a loss from :func:`scaled` it is the factor itself, an
array that may lie on a device. A gradient can so be divided by what it was multiplied by, whoever did that, and
gradients that were multiplied by different factors can be told from others:

===============  ==========================================================================
``NOT_REACHED``  no backward pass since ``cleargrad``: a gradient that the user wrote, or none
``ZERO``         ``zerograd``: to be added to, at any scale
``None``         a backward pass that was not scaled
a factor         one or several backward passes, all scaled by it
``Used``         a step has used the gradient; it is still there, and still scaled
``MIXED``        backward passes with different factors, or one on top of a written gradient
===============  ==========================================================================
"""

import functools
import threading

import chainer
import numpy as np
from chainer import _backprop

from mixprec.backends.reading import known

WATCHED = "_mixprec_watched"  # attribute of a parameter

_pass = threading.local()


class _Mark(float):
    """A note that is no factor. An optimizer of plain Chainer would divide by it, by NaN if that is wrong."""

    def __new__(cls, name, value):
        mark = super().__new__(cls, value)
        mark._name = name
        return mark

    def __reduce__(self):
        return self._name  # a copy of a mark is the mark itself


NOT_REACHED = _Mark("NOT_REACHED", 1.0)
ZERO = _Mark("ZERO", 1.0)
MIXED = _Mark("MIXED", np.nan)


class Used(float):
    """The note on a gradient that a step has used; as a number, which is for plain Chainer, the factor if it is known.

    Attributes:
        factor: by what it is scaled.
        gradient: the array; another one in its place was written by the user.
    """

    def __new__(cls, factor, gradient):
        note = super().__new__(cls, factor if known(factor) else np.nan)
        note.factor = factor
        note.gradient = gradient
        return note

    def __getnewargs__(self):
        return self.factor, self.gradient


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
    """Makes Chainer keep the notes of watched parameters wherever it writes their gradients, once."""
    if hasattr(_backprop._backprop_to_all, "keeps_notes"):
        return
    backprop_to_all = _backprop._backprop_to_all
    parameter = chainer.Parameter
    addgrad, cleargrad, zerograd = parameter.addgrad, parameter.cleargrad, parameter.zerograd

    @functools.wraps(backprop_to_all)
    def keeping_notes(outputs, retain_grad, loss_scale):
        # F.forget runs a pass inside of the pass, without its loss scale.
        outer = getattr(_pass, "factor", None)
        factor = outer if loss_scale is None else loss_scale
        before = [(param, param._loss_scale) for param in _reached(outputs) if param.grad is not None]
        _pass.factor = factor
        try:
            backprop_to_all(outputs, retain_grad, factor)
        finally:
            _pass.factor = outer
        for param, note in before:
            param._loss_scale = _merged(note, factor)

    @functools.wraps(addgrad)
    def adding(self, var):
        note, empty = self._loss_scale, not self.is_initialized or self.grad is None
        addgrad(self, var)
        if hasattr(self, WATCHED):
            self._loss_scale = var._loss_scale if empty else _merged(note, var._loss_scale)

    @functools.wraps(cleargrad)
    def clearing(self):
        if hasattr(self, WATCHED):
            self._loss_scale = NOT_REACHED
        cleargrad(self)

    @functools.wraps(zerograd)
    def zeroing(self):
        zerograd(self)
        if hasattr(self, WATCHED):
            self._loss_scale = ZERO

    keeping_notes.keeps_notes = True
    _backprop._backprop_to_all = keeping_notes
    parameter.addgrad, parameter.cleargrad, parameter.zerograd = adding, clearing, zeroing


def _reached(outputs):
    """Returns the watched parameters that a backward pass from ``[(variable node, gradient)]`` may reach."""
    nodes = [node for node, _ in outputs]
    seen, params = set(nodes), []
    while nodes:
        node = nodes.pop()
        creator = node.creator_node
        if creator is None:
            param = node.get_variable_or_none()
            if hasattr(param, WATCHED):
                params.append(param)
        elif creator not in seen:
            seen.add(creator)
            nodes += [x for x in creator.inputs if x not in seen and x.requires_grad]
            seen.update(creator.inputs)
    return params


def _merged(note, other):
    """Returns the note on the sum of two gradients."""
    if note is ZERO:
        return other
    return other if note is not MIXED and _same(factor_of(note), factor_of(other)) else MIXED


def watch(model, notes=()):
    """Looks after the notes on the parameters of ``model`` from now on.

    Args:
        model: link. Gradients that it has already are taken as they are.
        notes: the notes to begin with, from :func:`notes_of`.
    """
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
