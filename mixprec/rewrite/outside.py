"""What is a converted model's own, in functions that a program applies to it outside of a call of the model.

A penalty on weights, ``loss + F.sum(param ** 2)``, meets a loss in float32, and its sum may be larger than float16
goes. So does a penalty on activations that the model has kept, ``loss + F.mean(model.h ** 2)``. A method of the model
that the program calls by its name, ``model.encode(x)``, gives ``F.linear(x, self.W)`` an input in float32. So
parameters, and variables that a call has computed, take part in float32, by a cast whose gradient is in their own
dtype. Backward passes apply functions to them, too, where they meet gradients in the compute dtype: there they stay as
they are.
"""

import functools
import threading

import chainer
from chainer.functions.array.cast import Cast

from mixprec.compat.registry import patch
from mixprec.dtypes import BFLOAT16, FLOAT32, is_half
from mixprec.functions.layout import cast
from mixprec.links.storage import Rounded
from mixprec.rewrite.dtype_rules import chainer_apply

_COMPUTED = "_mixprec_computed_in_a_call"  # attribute of variables


class _Backward(threading.local):
    """Attribute ``enables``: ``chainer.config.enable_backprop`` of the pass under way in this thread, or ``None``."""

    enables = None


_backward = _Backward()


def marked(outputs):
    """Returns variables that a function has computed in a call of a converted model, marked as such.

    Gradients, which a backward pass in a call computes, are not: sums of them stay in the compute dtype.
    """
    if _backward.enables is None or not _is_backward():
        for y in outputs:
            y.__dict__[_COMPUTED] = True  # setattr would compute what is deferred
    return outputs


def widened(node, inputs):
    """Returns the inputs of a function node, all in float32 if a model's own in 16 bits is one of them."""
    for x in inputs:  # of all functions of the process: most are neither
        if (hasattr(x, _COMPUTED) or isinstance(x, chainer.Parameter)) and _is_own(x):
            break
    else:
        return inputs
    if _is_backward() or type(node).__module__.startswith("mixprec."):  # our functions take parameters as they are
        return inputs
    return tuple(_in_float32(x) if is_half(x.dtype) else x for x in inputs)


def operand(x, value, preprocess):
    """Returns what an operator takes of a value beside a variable, see :func:`mixprec.rewrite.operands.operand`."""
    if isinstance(value, chainer.get_array_types()) and _is_own(x) and not _is_backward():
        return value.astype(FLOAT32, copy=False)
    return preprocess(x, value)


def _is_own(x):
    """Whether ``x`` is a parameter of a converted model, or a variable that a call of one has computed, in 16 bits."""
    if isinstance(x, chainer.Parameter):
        return isinstance(x.initializer, Rounded) and is_half(x.dtype)
    return hasattr(x, _COMPUTED) and is_half(x.dtype)


def _is_backward():
    """Whether a function is applied by a backward pass, and not by a forward pass that F.forget repeats in one.

    Such a forward pass switches on what the backward pass has switched off.
    """
    return _backward.enables is not None and _backward.enables == chainer.config.enable_backprop


def _in_float32(x):
    # Chainer's own cast can be differentiated twice, and does not know bfloat16.
    return cast(x, FLOAT32) if x.dtype == BFLOAT16 else chainer_apply(Cast(FLOAT32), (x,))[0]


@patch("chainer._backprop:_backprop_to_all", "chainer.function_node:_backprop", when="mixprec.convert")
def backward_passes(original):
    """Without it parameters are float32 in gradients of gradients, too, which are in the compute dtype."""

    @functools.wraps(original)
    def run(*args):
        outer, _backward.enables = _backward.enables, chainer.config.enable_backprop
        try:
            return original(*args)
        finally:
            _backward.enables = outer

    return run
