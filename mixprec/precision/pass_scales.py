"""Records on parameters the scales of all backward passes, also of other libraries.

After :func:`install`, called by ``setup``, all code of Chainer that writes, adds, clears or moves a gradient also
records its scale on the parameter (:mod:`~mixprec.precision.grad_scales`).
"""

import contextlib
import functools
import inspect
import threading

import chainer
import numpy as np

from mixprec.backends import wgrad_stream
from mixprec.compat.registry import Patch
from mixprec.precision.grad_scales import (
    MIXED,
    NOT_REACHED,
    PENDING,
    UNSCALED_FP16,
    ZERO,
    UsedScale,
    grad_scale_of,
    merged,
)
from mixprec.precision.master_arrays import MASTER, OWNER, master_of


class _Pass(threading.local):
    """Attribute ``factor``: the scale of the current backward pass in this thread; ``None`` outside of passes."""

    factor = None


_pass = _Pass()


def install():
    """Patches Chainer, once, to keep the scales of gradients wherever it writes or moves them."""
    for patch in _PATCHES:
        patch.apply()


def reached(outputs):
    """Returns the functions and the leaves of a backward pass; runs before each pass, with little Python code.

    Args:
        outputs: the variable nodes that it begins from.

    Returns:
        ``(functions, leaves)``: a list of function nodes, and a list of the variable nodes without a creator that
        require a gradient. Outputs always require one.
    """
    functions, leaves, nodes = [], [], list(outputs)
    seen = set(nodes)
    for node in nodes:  # the list grows
        function = node._creator_node  # the property takes longer than all the rest
        if function is None:
            leaves.append(node)
        elif function not in seen:
            seen.add(function)
            functions.append(function)
            for x in function.inputs:
                if x._requires_grad and x not in seen:
                    seen.add(x)
                    nodes.append(x)
    return functions, leaves


def _keeping_grad_scales(backprop_to_all):
    @functools.wraps(backprop_to_all)
    def run(outputs, retain_grad, loss_scale):
        outer = _pass.factor
        nodes = [node for node, _ in outputs]
        functions, leaves = reached(nodes)
        factor = _scale_of_pass(nodes, functions) if loss_scale is None else loss_scale
        before = [(param, grad_scale_of(param)) for param in _params(leaves) if param.grad is not None]
        del functions, leaves  # so that the pass can free them
        for param, _ in before:
            param._loss_scale = PENDING
        _pass.factor = factor
        try:
            side = wgrad_stream.now.side
            with wgrad_stream.backward_pass(lambda: sole_uses(outputs)) if side else contextlib.nullcontext():
                backprop_to_all(outputs, retain_grad, factor)
        finally:
            _pass.factor = outer
            for param, scale in before:
                param._loss_scale = scale if param._loss_scale is PENDING else merged(scale, factor)

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
                scale = _scale_of_pass(outputs, reached(outputs)[0])
            for param in params:
                param._loss_scale = scale
        return gradients

    return run


def _writing(write):
    """A gradient that a function writes itself, as ``chainer.static_graph`` does, has the scale of the pass."""

    @functools.wraps(write)
    def run(self, gradient, **kwargs):
        factor = _pass.factor
        if factor is None or not hasattr(self, OWNER):
            write(self, gradient, **kwargs)
            return
        # ``param.grad += ...`` writes the same array again.
        is_added = gradient is not None and (gradient is self._grad or gradient is self._grad_var)
        scale = merged(grad_scale_of(self), factor) if is_added else factor
        write(self, gradient, **kwargs)
        self._loss_scale = NOT_REACHED if gradient is None else scale

    return run


def _adding(addgrad):
    @functools.wraps(addgrad)
    def run(self, var):
        scale = grad_scale_of(self) if self.is_initialized and self.grad is not None else ZERO
        addgrad(self, var)
        if hasattr(self, OWNER) and var.array is not None and var.grad is not None:
            added = grad_scale_of(var)
            if added is None:  # perhaps a variable that a function has made in its backward pass
                added = _pass.factor
            self._loss_scale = merged(scale, added)

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
        master = master_of(self)
        if master is not None:  # it is also read outside of steps
            self.__dict__[MASTER] = id(self), self.device.send(master)
        if isinstance(scale, UsedScale):
            self._loss_scale = UsedScale(scale.factor, {id(self): self.grad})

    return run


_REPLACEMENTS = {
    "chainer._backprop:_backprop_to_all": _keeping_grad_scales,
    "chainer.function_node:grad": _leaving_grad_scales,
    "chainer.variable:Parameter._set_grad": _writing,
    "chainer.variable:Parameter.addgrad": _adding,
    "chainer.variable:Parameter.cleargrad": functools.partial(_clearing, scale=NOT_REACHED),
    "chainer.variable:Parameter.grad_var": lambda grad_var: property(grad_var.fget, _writing(grad_var.fset)),
    "chainer.variable:Parameter.zerograd": functools.partial(_clearing, scale=ZERO),
    "chainer.variable:Parameter.to_device": _moving,
}
_WHY = "Without it a step does not know the scale of a gradient that Chainer has written, added, cleared or moved."
_PATCHES = [Patch(target, make, _WHY, "setup") for target, make in _REPLACEMENTS.items()]


def _params(leaves):
    """Returns the parameters with masters among the leaves of a backward pass, except an outer pass's."""
    variables = [node.get_variable_or_none() for node in leaves]
    return [param for param in variables if hasattr(param, OWNER) and param._loss_scale is not PENDING]


def _scale_of_pass(outputs, functions):
    """Returns the scale for the gradients of a backward pass without a loss scale of its own.

    Args:
        outputs: the variable nodes that it begins from.
        functions: functions of the pass, from :func:`reached`.
    """
    outer = _pass.factor
    if outer is not None:  # a nested pass starts from gradients of the outer one, as in F.forget: same scale
        return outer
    losses = [node.get_variable_or_none() for node in outputs]
    factors = {id(factor): factor for factor in (getattr(loss, "factor", None) for loss in losses)}
    factor = factors.popitem()[1] if len(factors) == 1 else MIXED
    nodes = {*outputs, *(x for function in functions for x in function.inputs if x.requires_grad)}
    if factor is None and any(getattr(node, "is_scaled", False) for node in nodes):
        return MIXED  # such as a sum of scaled losses, whose factor is unknown
    return UNSCALED_FP16 if factor is None and any(node.dtype == np.float16 for node in nodes) else factor


def sole_uses(outputs):
    """Returns the inputs of functions that are parameters without a gradient, and are used by one function only.

    Args:
        outputs: outputs of a backward pass, ``[(variable node, gradient)]``.

    Returns:
        Set of pairs of a function node and the index of the input; empty in Chainer's debug mode, which checks every
        gradient immediately.
    """
    if chainer.is_debug():
        return set()
    outputs = [node for node, _ in outputs]
    functions, leaves = reached(outputs)
    users = {node: [None] for node in outputs}  # an output has a gradient already
    for function in functions:
        for index, x in enumerate(function.inputs):
            users.setdefault(x, []).append((function, index))
    found = set()
    for x in leaves:
        param = x.get_variable_or_none()
        if len(users[x]) == 1 and users[x][0] is not None and hasattr(param, OWNER) and param.grad is None:
            found.add(users[x][0])
    return found
