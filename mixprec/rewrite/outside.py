"""Parameters of a converted model in functions that a program applies to them outside of a call of the model.

A penalty on weights, ``loss + F.sum(param ** 2)``, meets a loss in float32, and its sum may be larger than float16
goes. A method of the model that the program calls by its name, ``model.encode(x)``, gives ``F.linear(x, self.W)``
an input in float32. So parameters take part in float32, by a cast whose gradient is in their own dtype. Backward
passes apply functions to parameters, too, where these meet gradients in the compute dtype: there they stay as they are.
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

_Parameter = chainer.Parameter


class _Backward(threading.local):
    """Attribute ``enables``: ``chainer.config.enable_backprop`` of the pass under way in this thread, or ``None``."""

    enables = None


_backward = _Backward()


def widened(node, inputs):
    """Returns the inputs of a function node, all in float32 if one of them is a converted parameter in 16 bits."""
    for x in inputs:  # of all functions of the process
        if isinstance(x, _Parameter) and isinstance(x.initializer, Rounded) and is_half(x.dtype):
            break
    else:
        return inputs
    # F.forget repeats a forward pass in a backward pass: it switches on what that has switched off.
    if _backward.enables == chainer.config.enable_backprop:
        return inputs
    if type(node).__module__.startswith("mixprec."):  # our functions take parameters as they are
        return inputs
    return tuple(_in_float32(x) if is_half(x.dtype) else x for x in inputs)


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
