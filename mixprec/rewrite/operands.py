"""Numbers and arrays that a model combines with its variables: their dtypes, and values that 16 bits cannot hold.

Chainer's operators cast an array to the dtype of the variable beside it. In a converted model an array counts like any
input: float32 makes the result float32. Numbers and arrays without axes do not affect the dtype, as in NumPy and
PyTorch. Where they become 0 or inf in 16 bits, like 1e-8 and -1e9 in float16, the line of the model is named once.
"""

import numbers

import chainer
import numpy as np

from mixprec.backends.transfers import to_host
from mixprec.base.announcements import announce, place_of_call
from mixprec.base.dtypes import BFLOAT16, FLOAT32, LIMITS, STORAGE_DTYPES, is_half
from mixprec.rewrite.memory_order import cast

_SMALLEST, _LARGEST = 2.0**-150, float(np.finfo(np.float32).max)  # beyond which float32 is 0 and inf as well
# Attributes of function nodes which compute in 16 bits.
_NUMBERS = {
    **dict.fromkeys(("AddConstant", "DivFromConstant", "MulConstant", "SubFromConstant"), ("value",)),
    "Clip": ("x_min", "x_max"),
    "ClippedReLU": ("cap",),
    "ELU": ("alpha",),
    "LeakyReLU": ("slope",),
    "PadSequence": ("padding",),
    "Softplus": ("beta", "beta_inv"),
}


def operand(scope, x, value, preprocess):
    """Returns the operand that an operator takes for an array beside a variable.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        x: the variable or array on the other side.
        value: a variable, number or array.
        preprocess: Chainer's own function of ``x`` and ``value``, which casts arrays to the dtype of ``x``.
    """
    if not (is_half(x.dtype) and isinstance(value, chainer.get_array_types())):
        return preprocess(x, value)
    if value.ndim and (value.dtype.kind == "f" or value.dtype == BFLOAT16):
        return value if value.dtype in STORAGE_DTYPES else value.astype(FLOAT32)
    name_lost_array(scope, value, x.dtype)
    if x.dtype == BFLOAT16:  # which CuPy cannot cast to
        return cast(value.astype(FLOAT32), BFLOAT16)
    with np.errstate(over="ignore"):
        return preprocess(x, value)


def name_lost_numbers(node, dtype):
    """Names the line that applies a function node, if a number of the node becomes 0 or inf.

    Args:
        node: a function node, which computes in 16 bits.
        dtype: these 16 bits.
    """
    name = type(node).__name__
    values = [getattr(node, attribute) for attribute in _NUMBERS.get(name, ())]
    for value in node.keywords.values() if name == "Pad" else values:
        if isinstance(value, numbers.Real):
            _name_if_lost(value, dtype, name)


def name_lost_array(scope, x, dtype):
    """Names the line that applies a function, if an array from outside of the model becomes inf, or 0 as a whole.

    It looks at arrays in the calls that are traced, and at those on a device only while ``convert`` calls the example.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        x: array or variable.
        dtype: 16 bits to which it is cast.
    """
    if isinstance(x, chainer.Variable) and (x.creator_node is not None or isinstance(x, chainer.Parameter)):
        return
    array = chainer.as_array(x)
    on_host = type(array) is np.ndarray
    looked_at = scope.conversion.on_example or (on_host and (scope.trace is not None or not array.ndim))
    if looked_at and array.size and (on_host or array.dtype != BFLOAT16):
        xp = chainer.backend.get_array_module(array)
        magnitudes = abs(array.astype(np.float64))
        largest = to_host(xp.where(xp.isfinite(magnitudes), magnitudes, 0).max())
        _name_if_lost(largest, dtype, "its cast", "an array of numbers up to ")


def _name_if_lost(value, dtype, function, kind=""):
    try:
        magnitude = abs(float(value))
    except OverflowError:  # of an integer
        return
    zero, infinite = LIMITS[dtype]
    becomes = 0 if _SMALLEST < magnitude <= zero else None
    if infinite <= magnitude <= _LARGEST:
        becomes = "inf" if value > 0 else "-inf"
    if becomes is not None:
        message = (
            '%s: %s becomes %s in %s (%s): take one that fits, or F.cast(h, "float32") before an operator; '
            "products of matrices are %s in any case"
        )
        location = place_of_call()
        announce(message, location, f"{kind}{float(value):g}", becomes, dtype.name, function, dtype.name, key=location)
