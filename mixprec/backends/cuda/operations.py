"""The operations of cuDNN that the primitives use, as keys of plans."""

import math

from mixprec.backends.cudnn.operation import Operation, Tensor

_FLOAT = "float32"


def conv_fprop(x_shape, w_shape, dtype, convolution, *, b=None, relu=False, statistics=False):
    """Returns the :class:`~mixprec.backends.cudnn.operation.Operation` of a convolution.

    Args:
        x_shape: (N, H, W, C).
        w_shape: (K, R, S, C / groups).
        dtype: the storage dtype, of NumPy.
        convolution: :class:`~mixprec.backends.geometry.Convolution`.
        b: dtype of a bias, or ``None``.
        relu: whether a ReLU follows.
        statistics: whether to compute the sums of channels and of their squares.
    """
    k, y_shape = w_shape[0], convolution.y_shape(x_shape, w_shape)
    inputs = [Tensor("x", x_shape, dtype.name), Tensor("w", w_shape, dtype.name)]
    if b is not None:
        inputs.append(Tensor("b", (k,), b.name))
    outputs = [Tensor("y", y_shape, dtype.name)]
    if statistics:
        outputs += [Tensor("sum", (k,), _FLOAT), Tensor("square_sum", (k,), _FLOAT)]
    return operation("conv_fprop", inputs, outputs, **geometry(convolution), relu=relu)


def conv_dgrad(dy_shape, w_shape, x_shape, dtype, convolution):
    """Returns the operation of a convolution's gradient with respect to its input."""
    inputs = [Tensor("dy", dy_shape, dtype.name), Tensor("w", w_shape, dtype.name)]
    return operation("conv_dgrad", inputs, [Tensor("dx", x_shape, dtype.name)], **geometry(convolution))


def conv_wgrad(x_shape, dy_shape, w_shape, dtype, convolution):
    """Returns the operation of a convolution's gradient with respect to its filter."""
    inputs = [Tensor("x", x_shape, dtype.name), Tensor("dy", dy_shape, dtype.name)]
    return operation("conv_wgrad", inputs, [Tensor("dw", w_shape, dtype.name)], **geometry(convolution))


def batch_norm(shape, dtype, attributes, *, add):
    """Returns the operation of a batch normalization in training; with an addition and a ReLU it makes a mask.

    Args:
        shape: (..., C).
        dtype: the storage dtype, of NumPy.
        attributes: :class:`~mixprec.backends.geometry.BatchNorm`.
        add: whether something is added.
    """
    shape = _image(shape)
    inputs = [Tensor("x", shape, dtype.name), *_channels(shape, "gamma", "beta", "running_mean", "running_var")]
    if add:
        inputs.append(Tensor("add", shape, dtype.name))
    outputs = [Tensor("y", shape, dtype.name), *_channels(shape, "mean", "invstd", "next_mean", "next_var")]
    if add and attributes.relu:
        outputs.append(Tensor("mask", shape, "boolean"))
    numbers = {"eps": float(attributes.eps), "momentum": 1.0 - attributes.decay}
    return operation("batch_norm", inputs, outputs, relu=attributes.relu, **numbers)


def batch_norm_backward(shape, dtype, *, recompute=False, mask=False):
    """Returns the operation of a batch normalization's gradients.

    Args:
        shape: (..., C).
        dtype: the storage dtype, of NumPy.
        recompute: whether there was a ReLU without an addition.
        mask: whether there was a ReLU after an addition.
    """
    shape = _image(shape)
    inputs = [Tensor("dy", shape, dtype.name), Tensor("x", shape, dtype.name)]
    inputs += _channels(shape, "gamma", "mean", "invstd", *(["beta"] if recompute else []))
    outputs = [Tensor("dx", shape, dtype.name), *_channels(shape, "dgamma", "dbeta")]
    if mask:
        inputs.append(Tensor("mask", shape, "boolean"))
        outputs.append(Tensor("dadd", shape, dtype.name))
    return operation("batch_norm_backward", inputs, outputs)


def operation(kind, inputs, outputs, **attributes):
    """Returns an :class:`~mixprec.backends.cudnn.operation.Operation` from lists of tensors."""
    return Operation(kind, tuple(inputs), tuple(outputs), tuple(sorted(attributes.items())))


def geometry(convolution):
    """Returns the attributes common to all operations with a convolution, a dict."""
    return dict(vars(convolution))


def _channels(shape, *names):
    return [Tensor(name, shape[-1:], _FLOAT) for name in names]


def _image(shape):
    """Returns a shape (..., C) with four axes."""
    return tuple(shape) if len(shape) == 4 else (math.prod(shape[:-1]), 1, 1, shape[-1])
