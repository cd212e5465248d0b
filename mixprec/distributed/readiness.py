"""Detects final gradients: all functions that use the parameter have run in the backward pass.

Chainer's pass keeps gradients of parameters in its table until the end. Inside of :func:`watching` the functions that
use each parameter are counted before the pass, and each is ticked off after its step. A second stream of a GPU
(:mod:`mixprec.backends.wgrad_stream`) may then still be computing the gradient; packing there must wait for it.
"""

import functools
import threading

import chainer
from chainer import _backprop_utils

from mixprec.base.scoped import scoped
from mixprec.compat.registry import Patch


class _Now(threading.local):
    """State of this thread.

    Attributes:
        ready: callback of the next pass, or ``None``.
        uses: :class:`_Uses` of the current pass, or ``None``.
    """

    ready = None
    uses = None


_now = _Now()


def watching(ready):
    """A context in which the first backward pass of this thread reports when gradients of parameters are final.

    This does not work in debug mode, or in a pass with double backprop. Nested passes, as in ``F.forget``, are not
    watched.

    Args:
        ready: ``ready(param, gradient)`` is called once for each parameter that gets a gradient, in the order in which
            these are final. ``gradient`` is an array. It may return another array, which then becomes the parameter's
            gradient.
    """
    return scoped(_now, ready=ready)


def install():
    """Patches Chainer's backward passes so that they can be watched; called by ``setup`` with a communicator."""
    for patch in _PATCHES:
        patch.apply()


class _Uses:
    """Counts the functions of a pass that have not yet added to the gradient of each parameter.

    Args:
        outputs: outputs of the pass, ``[(variable node, gradient)]``.
        ready: see :func:`watching`.
    """

    def __init__(self, outputs, ready):
        self._ready = ready
        self._left = {}  # node of a parameter -> number of functions
        functions = {node.creator_node for node, _ in outputs if node.creator_node is not None}
        outputs_that_are_leaves = {node for node, _ in outputs if node.creator_node is None}
        self._functions, todo = functions, list(functions)
        while todo:
            for x in {x for x in todo.pop().inputs if x.requires_grad}:
                if x.creator_node is not None:
                    if x.creator_node not in functions:
                        functions.add(x.creator_node)
                        todo.append(x.creator_node)
                elif x not in outputs_that_are_leaves:
                    self._left[x] = self._left.get(x, 0) + 1

    def tick(self, function, gradients):
        """Ticks off a function that has added to ``gradients``, ``{variable node: list of variables}``."""
        if function not in self._functions:
            return  # a function of another graph
        self._functions.discard(function)
        for node in gradients:
            left = self._left.get(node)
            if left is None:
                continue
            self._left[node] = left - 1
            param = node.get_variable_or_none() if left == 1 else None
            gradient = _backprop_utils._reduce(gradients[node]) if isinstance(param, chainer.Parameter) else None
            if gradient is None or (gradient.shape, gradient.dtype) != (param.shape, param.dtype):  # Chainer raises
                continue
            now = self._ready(param, gradient.array)
            if now is not None:
                # At the end of the pass Chainer gives the parameter the gradient in its table.
                gradients[node][:] = [
                    chainer.Variable._init_unchecked(now, requires_grad=False, is_chainerx_array=False)
                ]


def _watchable(backprop_to_all):
    @functools.wraps(backprop_to_all)
    def run(outputs, retain_grad, loss_scale):
        outer, ready = _now.uses, _now.ready
        _now.uses = _now.ready = None
        if ready is not None and not chainer.config.debug and not chainer.config.enable_backprop:
            _now.uses = _Uses(outputs, ready)
        try:
            backprop_to_all(outputs, retain_grad, loss_scale)
        finally:
            _now.uses = outer

    return run


def _ticking(backprop_step):
    @functools.wraps(backprop_step)
    def run(func, target_input_indexes, grad_outputs, grad_inputs, is_debug):
        uses, _now.uses = _now.uses, None  # nested steps of chainer.grad belong to another graph
        try:
            backprop_step(func, target_input_indexes, grad_outputs, grad_inputs, is_debug)
        finally:
            _now.uses = uses
        if uses is not None:
            uses.tick(func, grad_inputs)

    return run


WHEN = "setup with a communicator"
_WHY = "Without it gradients are sent to other processes after the backward pass, and none during it."
_PATCHES = [
    Patch("chainer._backprop:_backprop_to_all", _watchable, _WHY, WHEN),
    Patch("chainer._backprop_utils:backprop_step", _ticking, _WHY, WHEN),
]
