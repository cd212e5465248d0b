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
import inspect
import itertools
import operator
import threading

import chainer
import numpy as np
from chainer import _backprop, function_node

from mixprec import functions
from mixprec.backends import aside
from mixprec.backends.transfers import on_host
from mixprec.dtypes import BFLOAT16
from mixprec.functions.softmax_cross_entropy import SoftmaxCrossEntropy
from mixprec.master_arrays import OWNER
from mixprec.optimizer.sole_uses import sole_uses

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
_PENDING = _Mark("_PENDING", np.nan)  # while a pass is under way


class Used(float):
    """The note on gradients that a step has used; as a number, which is for plain Chainer, the factor if it is known.

    Attributes:
        factor: by what they are scaled.
    """

    def __new__(cls, factor, gradients):
        note = super().__new__(cls, factor if on_host(factor) else np.nan)
        note.factor = factor
        note._gradients = gradients
        return note

    def holds_for(self, param):
        """Whether the gradient of ``param`` is still the one; another one in its place was written by the user."""
        return self._gradients.get(id(param)) is param.grad


class ScaledLoss(chainer.Variable):
    """A loss that has been multiplied by ``factor``; its ``backward`` notes that on the parameters it reaches.

    Attributes:
        factor: float32 array of shape ().
        unscaled: the variable that was multiplied.
    """

    def backward(self, retain_grad=False, enable_double_backprop=False, loss_scale=None):
        """Runs :meth:`chainer.Variable.backward`.

        Raises:
            ValueError: ``loss_scale`` is given, though the loss is scaled already.
        """
        if loss_scale is not None:
            raise ValueError("backward(loss_scale=...) of a loss that scale_loss() has scaled already")
        backward = super().backward
        if self.array.size == 1 and self.grad_var is None:  # otherwise Chainer would multiply by the factor once more
            with chainer.using_device(self.device):
                fits = type(self.factor) is type(self.array)
                if fits and isinstance(self.unscaled.creator_node, SoftmaxCrossEntropy):
                    # The gradient of what was multiplied: a 1, and a product with it, would be two launches more. Other
                    # functions, such as an addition, hand it on: a parameter would get the factor itself.
                    backward = self.unscaled.backward
                    self.unscaled.grad = self.factor.astype(self.dtype, copy=False).reshape(self.shape)
                else:
                    self.grad = self.xp.ones_like(self.array)
        # An overflow is what the loss scale waits for; NumPy's warnings about it would only repeat it.
        with np.errstate(over="ignore", invalid="ignore"):
            backward(retain_grad, enable_double_backprop, self.factor)


def scaled(loss, factor):
    """Returns ``loss * factor`` for ``backward``; one in 16 bits becomes float32, in which all factors have room.

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
    elif loss.dtype == BFLOAT16:  # which Chainer does not cast
        loss = functions.cast(loss, "float32")
    result = loss * factor.astype(loss.dtype, copy=False)
    result.__class__ = ScaledLoss  # the variable that Chainer's graph already knows, with another backward()
    result.factor, result.unscaled = factor, loss
    return result


def install():
    """Makes Chainer keep the notes on parameters with masters wherever it writes or moves their gradients, once."""
    if hasattr(_backprop._backprop_to_all, "keeps_notes"):
        return
    _backprop._backprop_to_all = _keeping_notes(_backprop._backprop_to_all)
    chainer.grad = function_node.grad = _noting(function_node.grad)
    parameter = chainer.Parameter
    parameter.addgrad = _adding(parameter.addgrad)
    parameter.cleargrad = _clearing(parameter.cleargrad, NOT_REACHED)
    parameter.zerograd = _clearing(parameter.zerograd, ZERO)
    parameter.to_device = _moving(parameter.to_device)


def _keeping_notes(backprop_to_all):
    @functools.wraps(backprop_to_all)
    def run(outputs, retain_grad, loss_scale):
        # F.forget runs a pass inside of the pass, without its loss scale.
        outer = getattr(_pass, "factor", None)
        factor = loss_scale
        if factor is None:
            factor = _factor_of_losses(node.get_variable_or_none() for node, _ in outputs) if outer is None else outer
        before = [(param, _note(param)) for param in _reachable(outputs) if param.grad is not None]
        for param, _ in before:
            param._loss_scale = _PENDING
        _pass.factor = factor
        try:
            with aside.backward_pass(functools.partial(sole_uses, outputs)):
                backprop_to_all(outputs, retain_grad, factor)
        finally:
            _pass.factor = outer
            for param, note in before:
                reached = param._loss_scale is not _PENDING
                param._loss_scale = _merged(note, factor) if reached else note

    run.keeps_notes = True
    return run


def _noting(grad):
    signature = inspect.signature(grad)

    @functools.wraps(grad)
    def run(*args, **kwargs):
        gradients = grad(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        if given.get("set_grad"):
            factor = given.get("loss_scale")
            for param in given["inputs"]:
                if hasattr(param, OWNER):
                    param._loss_scale = _factor_of_losses(given["outputs"]) if factor is None else factor
        return gradients

    return run


def _adding(addgrad):
    @functools.wraps(addgrad)
    def run(self, var):
        note = _note(self) if self.is_initialized and self.grad is not None else ZERO
        addgrad(self, var)
        if hasattr(self, OWNER) and var.array is not None and var.grad is not None:
            self._loss_scale = _merged(note, _note(var))

    return run


def _clearing(clear, note):
    @functools.wraps(clear)
    def run(self):
        clear(self)
        if hasattr(self, OWNER):
            self._loss_scale = note

    return run


def _moving(to_device):
    @functools.wraps(to_device)
    def run(self, device):
        note = _note(self) if hasattr(self, OWNER) else None
        to_device(self, device)
        if isinstance(note, Used):
            self._loss_scale = Used(note.factor, {id(self): self.grad})

    return run


def _reachable(outputs):
    """Returns the parameters with masters in the graph of a backward pass from ``[(variable node, gradient)]``."""
    nodes = [node for node, _ in outputs]
    seen, params = set(nodes), []
    while nodes:
        node = nodes.pop()
        creator = node.creator_node
        if creator is None:
            param = node.get_variable_or_none()
            if hasattr(param, OWNER) and param._loss_scale is not _PENDING:  # of the outer pass
                params.append(param)
        elif creator not in seen:
            seen.add(creator)
            nodes += [x for x in creator.inputs if x not in seen and x.requires_grad]
            seen.update(creator.inputs)
    return params


def _factor_of_losses(losses):
    """Returns the factor that all of the losses are scaled by, or ``None``."""
    factors = {id(factor): factor for factor in (getattr(loss, "factor", None) for loss in losses)}
    return factors.popitem()[1] if len(factors) == 1 else None


def _note(param):
    note = param._loss_scale
    return NOT_REACHED if isinstance(note, Used) and not note.holds_for(param) else note


def _merged(note, other):
    """Returns the note on the sum of two gradients."""
    if note is ZERO:
        return other
    return other if note is not MIXED and _same(factor_of(note), factor_of(other)) else MIXED


def start(model, notes=()):
    """Sets the notes on the parameters of ``model``.

    Args:
        model: link. Gradients that it has already are taken as they are.
        notes: the notes to begin with, from :func:`notes_of`.
    """
    for param in model.params():
        param._loss_scale = NOT_REACHED
    for param, note, used in notes:
        param._loss_scale = Used(note, {id(param): param.grad}) if used else note


def notes_of(model):
    """Returns the notes for :func:`start`: a parameter does not take its note with it when it is copied or pickled."""
    notes = [(param, _note(param)) for param in model.params() if param.array is not None]
    return [(param, factor_of(note), True) if isinstance(note, Used) else (param, note, False) for param, note in notes]


def use(params, notes, gradients):
    """Ends a step: gradients have been used.

    Args:
        params: the parameters of the model, uninitialized ones among them.
        notes: the note on each of them.
        gradients: the gradient of each of them, or ``None``.
    """
    used = {}
    held = dict(zip(map(id, params), gradients, strict=True))
    note = only_note(notes) if notes else NOT_REACHED
    is_factor = note is not None and not isinstance(note, (_Mark, Used)) and not is_one(note)
    if is_factor and not any(map(operator.is_, gradients, itertools.repeat(None))):  # in most steps
        note = Used(note, held)
        for param in params:
            param._loss_scale = note
        return
    for param, note, gradient in zip(params, notes, gradients, strict=True):
        if note is NOT_REACHED or (isinstance(note, Used) and note.holds_for(param)):
            continue
        if gradient is None or isinstance(note, Used) or is_one(factor_of(note)):
            param._loss_scale = NOT_REACHED
            continue
        if id(note) not in used:
            used[id(note)] = Used(note, held)
        param._loss_scale = used[id(note)]


def only_note(notes):
    """Returns the note that all ``notes`` are, or :data:`MIXED` if there are several."""
    return notes[0] if all(map(operator.is_, notes, itertools.repeat(notes[0]))) else MIXED


def scale_of(param):
    """Returns by what the gradient of ``param`` is multiplied: an array of shape (), or a float."""
    return factor_of(_note(param))


def factor_of(note):
    """Returns the factor that a note means, ``None`` being a pass that was not scaled."""
    if isinstance(note, Used):
        return note.factor
    return 1.0 if note is None else note


def is_one(factor):
    """Whether there is nothing to divide by. An array is not looked at: it may be on a device."""
    return isinstance(factor, (int, float)) and factor == 1


def _same(left, right):
    return left is right or (on_host(left) and on_host(right) and bool(left == right))
