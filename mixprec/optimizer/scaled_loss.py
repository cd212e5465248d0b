"""Backward passes on a scaled loss.

``update()`` and ``scale_loss`` of the wrapper make a :class:`ScaledLoss`, by :class:`ScaledPasses`. Its ``backward``,
like all code of Chainer that writes, adds, clears or moves a gradient, leaves on the parameter by what that gradient is
scaled (:mod:`~mixprec.optimizer.grad_scales`); :func:`install`, called by ``setup``, sees to that.
"""

import contextlib
import functools
import inspect
import operator
import threading
from collections.abc import Iterator

import chainer
import numpy as np

from mixprec import arguments, functions
from mixprec.backends import aside
from mixprec.compat.registry import Patch
from mixprec.dtypes import BFLOAT16
from mixprec.functions.classification import SoftmaxCrossEntropy
from mixprec.master_arrays import OWNER
from mixprec.optimizer.grad_scales import (
    MIXED,
    NOT_REACHED,
    PENDING,
    UNSCALED_FP16,
    ZERO,
    UsedScale,
    grad_scale_of,
    merged,
)

_pass = threading.local()


class ScaledLoss(chainer.Variable):
    """A loss that has been multiplied by ``factor``; its ``backward`` leaves that on the parameters it reaches.

    Attributes:
        factor: float32 array of shape ().
        unscaled: the variable that was multiplied.
        looking_on: ``looking_on(factor)`` returns a context for the pass, in which a preconditioner looks at layers.
    """

    looking_on = staticmethod(contextlib.nullcontext)

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
        with np.errstate(over="ignore", invalid="ignore"), self.looking_on(self.factor):
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
    result.node.is_scaled = True  # for passes from what has been computed of it
    return result


def check_loss(loss: chainer.Variable) -> None:
    """Makes sure that a loss can be scaled: ``backward`` of several elements would do nothing, in silence.

    Raises:
        TypeError: it is not a variable of floating-point numbers.
        ValueError: it has not exactly one element.
    """
    if not isinstance(loss, chainer.Variable):
        raise arguments.not_a("loss", loss, "a chainer.Variable")
    if loss.array is None:
        raise ValueError("loss must have one element; found a variable that has no array")
    if loss.dtype.kind != "f" and loss.dtype != BFLOAT16:
        raise TypeError(f"loss must be floating-point numbers; found {loss.dtype}")
    if loss.size != 1:
        raise ValueError(f"loss must have one element, as F.sum(loss) and F.mean(loss) have; found shape {loss.shape}")


class ScaledPasses:
    """The backward passes of the step under way, of losses that all have the scale of the first.

    Args:
        scaler: the loss scale.
        preconditioner: :class:`~mixprec.kfac.preconditioner.KFAC`, or ``None``.

    Attributes:
        factor: what losses are multiplied by, an array of shape (); ``None`` before the first pass of a step, and
            without a scale. With a preconditioner that is the factor 1.
    """

    def __init__(self, scaler, preconditioner=None):
        self._scaler, self._preconditioner = scaler, preconditioner
        self.factor = None

    def factor_on(self, device):
        """Returns the factor on a device, or ``None`` without a scale."""
        if self.factor is None:
            self.factor = self._scaler.factor(device)
            if self._preconditioner is not None:
                self._preconditioner.begin()
                if self.factor is None:
                    self.factor = device.xp.ones((), np.float32)
        return self.factor if self.factor is None else device.send(self.factor)

    def scale(self, loss):
        """Returns the scaled loss; raises as :func:`check_loss` and :func:`scaled` do."""
        check_loss(loss)
        factor = self.factor_on(loss.device)
        if factor is None:
            return loss
        result = scaled(loss, factor)
        if self._preconditioner is not None:
            result.looking_on = self._preconditioner.collecting
        return result

    def run(self, model, lossfun, args, kwds, ranks=None):
        """Calls a loss function, clears the gradients of the model, and runs ``backward`` of each loss it returns.

        Args:
            model, lossfun, args, kwds: as for ``update``.
            ranks: :class:`~mixprec.optimizer.ranks.Ranks` of a wrapper with a communicator, or ``None``. Its
                ``last_pass()`` is around the last backward pass, if it is known before that which one it is.

        Raises:
            ValueError: there are more losses than their iterator said.
        """
        # An overflow is what the loss scale waits for; NumPy's warnings about it would only repeat it.
        with np.errstate(over="ignore", invalid="ignore"):
            losses = lossfun(*args, **kwds)
            model.cleargrads()
            left = operator.length_hint(losses) if isinstance(losses, Iterator) else 1
            is_known = left > 0 and ranks is not None
            for loss in losses if isinstance(losses, Iterator) else (losses,):
                if is_known and not left:
                    raise ValueError("the iterator of losses has more of them than its length hint says")
                left -= 1
                with contextlib.nullcontext() if left or ranks is None else ranks.last_pass():
                    self.scale(loss).backward()
                del loss  # before the next one, for which there is to be memory


def install():
    """Makes Chainer keep the scales of gradients of parameters with masters wherever it writes or moves one, once."""
    for patch in _PATCHES:
        patch.apply()


def _keeping_grad_scales(backprop_to_all):
    @functools.wraps(backprop_to_all)
    def run(outputs, retain_grad, loss_scale):
        outer = getattr(_pass, "factor", None)
        nodes = _nodes_of_pass([node for node, _ in outputs])
        factor = _scale_of_pass(nodes, len(outputs)) if loss_scale is None else loss_scale
        before = [(param, grad_scale_of(param)) for param in _params(nodes) if param.grad is not None]
        del nodes  # a pass may free what it has been through
        for param, _ in before:
            param._loss_scale = PENDING
        _pass.factor = factor
        try:
            with aside.backward_pass(lambda: sole_uses(outputs)) if aside.now.aside else contextlib.nullcontext():
                backprop_to_all(outputs, retain_grad, factor)
        finally:
            _pass.factor = outer
            for param, scale in before:
                reached = param._loss_scale is not PENDING
                param._loss_scale = merged(scale, factor) if reached else scale

    return run


def _leaving_grad_scales(grad):
    signature = inspect.signature(grad)

    @functools.wraps(grad)
    def run(*args, **kwargs):
        gradients = grad(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        params = [x for x in given["inputs"] if hasattr(x, OWNER)] if given.get("set_grad") else ()
        if params:
            scale = given.get("loss_scale")
            if scale is None:
                outputs = [y.node for y in given["outputs"]]
                scale = _scale_of_pass(_nodes_of_pass(outputs), len(outputs))
            for param in params:
                param._loss_scale = scale
        return gradients

    return run


def _adding(addgrad):
    @functools.wraps(addgrad)
    def run(self, var):
        scale = grad_scale_of(self) if self.is_initialized and self.grad is not None else ZERO
        addgrad(self, var)
        if hasattr(self, OWNER) and var.array is not None and var.grad is not None:
            self._loss_scale = merged(scale, grad_scale_of(var))

    return run


def _clearing(clear, scale):
    @functools.wraps(clear)
    def run(self):
        clear(self)
        if hasattr(self, OWNER):
            self._loss_scale = scale

    return run


def _moving(to_device):
    @functools.wraps(to_device)
    def run(self, device):
        scale = grad_scale_of(self) if hasattr(self, OWNER) else None
        to_device(self, device)
        if isinstance(scale, UsedScale):
            self._loss_scale = UsedScale(scale.factor, {id(self): self.grad})

    return run


_REPLACEMENTS = {
    "chainer._backprop:_backprop_to_all": _keeping_grad_scales,
    "chainer.function_node:grad": _leaving_grad_scales,
    "chainer.variable:Parameter.addgrad": _adding,
    "chainer.variable:Parameter.cleargrad": functools.partial(_clearing, scale=NOT_REACHED),
    "chainer.variable:Parameter.zerograd": functools.partial(_clearing, scale=ZERO),
    "chainer.variable:Parameter.to_device": _moving,
}
_WHY = "Without it a step does not know the scale of a gradient that Chainer has written, added, cleared or moved."
_PATCHES = [Patch(target, make, _WHY, "setup") for target, make in _REPLACEMENTS.items()]


def _nodes_of_pass(outputs):
    """Returns the variable nodes that a backward pass comes by, a list that begins with ``outputs``."""
    nodes, seen = list(outputs), set(outputs)
    for node in nodes:  # which grows
        creator = node.creator_node
        if creator is not None and creator not in seen:
            seen.add(creator)
            nodes += {x: None for x in creator.inputs if x not in seen and x.requires_grad}
            seen.update(creator.inputs)
    return nodes


def _params(nodes):
    """Returns the parameters with masters among the nodes of a backward pass, but for those of an outer pass."""
    variables = [node.get_variable_or_none() for node in nodes if node.creator_node is None]
    return [param for param in variables if hasattr(param, OWNER) and param._loss_scale is not PENDING]


def _scale_of_pass(nodes, count):
    """Returns the scale that a backward pass without a loss scale of its own leaves.

    Args:
        nodes: of the pass, from :func:`_nodes_of_pass`.
        count: how many of them it begins from.
    """
    outer = getattr(_pass, "factor", None)
    if outer is not None:  # within a backward pass seeds are gradients of it, as in F.forget, and have its scale
        return outer
    losses = [node.get_variable_or_none() for node in nodes[:count]]
    factors = {id(factor): factor for factor in (getattr(loss, "factor", None) for loss in losses)}
    factor = factors.popitem()[1] if len(factors) == 1 else MIXED
    if factor is None and any(getattr(node, "is_scaled", False) for node in nodes):
        return MIXED  # a sum of scaled losses, say, whose factor is anybody's guess
    return UNSCALED_FP16 if factor is None and any(node.dtype == np.float16 for node in nodes) else factor


def sole_uses(outputs):
    """Returns the inputs of functions that are parameters without a gradient, and inputs of no other function.

    Args:
        outputs: of a backward pass, ``[(variable node, gradient)]``.

    Returns:
        Set of pairs of a function node and the place of the input; empty in Chainer's debug mode, which looks at every
        gradient at once.
    """
    if chainer.is_debug():
        return set()
    functions_left = [node.creator_node for node, _ in outputs if node.creator_node is not None]
    seen, places = set(functions_left), {node: [None] for node, _ in outputs}  # an output has a gradient already
    while functions_left:
        function = functions_left.pop()
        for place, x in enumerate(function.inputs):
            places.setdefault(x, []).append((function, place))
            if x.creator_node is not None and x.creator_node not in seen:
                seen.add(x.creator_node)
                functions_left.append(x.creator_node)
    found = set()
    for x, users in places.items():
        param = x.get_variable_or_none() if x.creator_node is None else None
        if len(users) == 1 and users[0] is not None and hasattr(param, OWNER) and param.grad is None:
            found.add(users[0])
    return found
