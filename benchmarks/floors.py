"""The floor of a call: the bytes that it has to move, the operations of its products, and the time that these need.

The floor of a call is the larger one of two times: all its arrays, read or written once, at the bandwidth of a copy,
and its floating-point operations at the rate of a large matrix product. Nothing is said of caches: a call whose arrays
lie in one may take less.
"""

import math

import numpy as np

BYTES, OPERATIONS = "bytes", "operations"

# Bytes that MomentumSGD reads and writes to update an element, with a WeightDecay hook: the gradient twice, as it is
# checked before anything is written; master and state; the float16 parameter, which the user may have written to.
UPDATE_BYTES = {"float16": 16 + 10, "float32": 16 + 8}


def floor(moved_bytes, operations, dtype, rates):
    """Returns ``(seconds, limit)``: what a call needs at least, and which of both takes longer.

    Args:
        moved_bytes: from :func:`moved`.
        operations: floating-point operations of products; 0 if there are none.
        dtype: name of the dtype of the factors.
        rates: :class:`~benchmarks.rates.Rates` of the machine.

    Returns:
        The seconds, and :data:`BYTES` or :data:`OPERATIONS`.

    Raises:
        KeyError: there is no rate for products of this dtype.
    """
    by_bytes = moved_bytes / rates.bandwidth
    if not operations:
        return by_bytes, BYTES
    by_operations = operations / rates.flops[dtype]
    return (by_operations, OPERATIONS) if by_operations > by_bytes else (by_bytes, BYTES)


def operations(name, arguments, result):
    """Returns the floating-point operations of the products of a convolution or linear layer, 0 for other primitives.

    Args:
        name: of the primitive.
        arguments: that it was called with.
        result: what it returned.
    """
    match name, arguments:
        case "conv_fprop" | "linear", (_, w, *_):
            moving, factors = arrays_of(result)[0].shape, w.shape[1:]
        case "conv_dgrad" | "deconv_fprop" | "linear_dgrad", (dy, w, *_):
            moving, factors = dy.shape, w.shape[1:]
        case "conv_wgrad", (_, dy, _, w_shape):
            moving, factors = dy.shape, w_shape[1:]
        case "linear_wgrad", (x, dy):
            moving, factors = dy.shape, x.shape[1:]
        case _:
            return 0
    return _of_product(moving, factors)


def operations_of_function(name, inputs, outputs):
    """Returns the same for a function of Chainer's.

    Args:
        name: of its class.
        inputs: arrays.
        outputs: arrays.
    """
    match name, inputs:
        case "Convolution2DFunction" | "ConvolutionND" | "LinearFunction", (_, w, *_):
            moving, factors = outputs[0].shape, w.shape[1:]
        case "Deconvolution2DFunction" | "DeconvolutionND", (x, w, *_):
            moving, factors = x.shape, w.shape[1:]
        case "Convolution2DGradW" | "ConvolutionNDGradW", (_, gy):
            moving, factors = gy.shape, outputs[0].shape[1:]
        case "LinearGradData", (w, gy):
            moving, factors = gy.shape, w.shape[1:]
        case "LinearGradWeight", (x, gy):
            moving, factors = gy.shape, x.shape[1:]
        case _:
            return 0
    return _of_product(moving, factors)


def _of_product(moving, factors):
    return 2 * math.prod(moving) * math.prod(factors)


def arrays_of(value):
    """Returns all arrays in tuples and lists."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [value]
    return [array for part in value for array in arrays_of(part)] if isinstance(value, (tuple, list)) else []


def moved(value):
    """Returns the bytes of all :func:`arrays_of` a value."""
    return sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays_of(value))


def shapes_of(value):
    """Returns the shapes of all :func:`arrays_of` a value as text, such as ``"2x7x7x16 16"``."""
    return " ".join("x".join(map(str, array.shape)) for array in arrays_of(value))
