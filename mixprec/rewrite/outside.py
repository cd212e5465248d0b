"""Functions that a program applies to a converted model's parameters and variables outside of a call of the model.

A penalty on weights, ``loss + F.sum(param ** 2)``, meets a loss in float32, and its sum may be larger than float16
goes. So does a penalty on activations that the model has kept, ``loss + F.mean(model.h ** 2)``. A method of the model
that the program calls by its name, ``model.encode(x)``, gives ``F.linear(x, self.W)`` an input in float32. So
parameters, and variables that a call has computed, are cast to float32; the gradient of the cast is in their own dtype.
Backward passes apply functions to them, too, beside gradients in the compute dtype: there they stay as they are.
"""

import functools

import chainer
from chainer.functions.array.cast import Cast

from mixprec.base.dtypes import BFLOAT16, FLOAT32, is_half
from mixprec.compat.registry import patch
from mixprec.functions.layout import cast
from mixprec.functions.node import chainer_apply
from mixprec.precision.conversion_state import active
from mixprec.precision.storage import Rounded
from mixprec.rewrite import operands

COMPUTED = "_mixprec_computed_in_a_call"  # attribute of variables: a function has computed it in a call of a model
_WHEN = "mixprec.convert"


def widened(node, inputs):
    """Returns the inputs of a function node, all in float32 if a model's own in 16 bits is one of them."""
    for x in inputs:  # of all functions of the process: most are neither
        if (hasattr(x, COMPUTED) or isinstance(x, chainer.Parameter)) and _is_own(x):
            break
    else:
        return inputs
    if is_backward() or type(node).__module__.startswith("mixprec."):  # our functions take parameters as they are
        return inputs
    return tuple(_in_float32(x) if is_half(x.dtype) else x for x in inputs)


@patch("chainer.functions.math.basic_math:_preprocess_rhs", when=_WHEN)
def operand(original):
    """Without it operators cast float32 arrays to the 16 bits of a variable: -1e9 in a mask becomes -inf."""

    @functools.wraps(original)
    def operand(x, value):
        scope = active.scope
        if scope is not None:
            return operands.operand(scope, x, value, original)
        if isinstance(value, chainer.get_array_types()) and _is_own(x) and not is_backward():
            return value.astype(FLOAT32, copy=False)
        return original(x, value)

    return operand


def _is_own(x):
    """Whether ``x`` is a parameter of a converted model, or a variable that a call of one has computed, in 16 bits."""
    if x.dtype == FLOAT32:
        return False
    if isinstance(x, chainer.Parameter):
        return isinstance(x.initializer, Rounded) and is_half(x.dtype)
    return hasattr(x, COMPUTED) and is_half(x.dtype)


def is_backward():
    """Whether a function is applied by a backward pass, and not by a forward pass that F.forget repeats in one.

    Such a forward pass switches on what the backward pass has switched off.
    """
    return active.backward is not None and active.backward == chainer.config.enable_backprop


def _in_float32(x):
    # Chainer's own cast can be differentiated twice, and does not know bfloat16.
    return cast(x, FLOAT32) if x.dtype == BFLOAT16 else chainer_apply(Cast(FLOAT32), (x,))[0]


@patch("chainer._backprop:_backprop_to_all", "chainer.function_node:_backprop", when=_WHEN)
def backward_passes(original):
    """Without it parameters are float32 in gradients of gradients, too, which are in the compute dtype."""

    @functools.wraps(original)
    def run(*args):
        outer, active.backward = active.backward, chainer.config.enable_backprop
        try:
            return original(*args)
        finally:
            active.backward = outer

    return run
