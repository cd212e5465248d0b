"""Chainer's own computations without cuDNN, with the arguments of ``cupy.cudnn``'s functions.

:func:`mixprec.bridge.calls.or_chainers_own` calls them in rare cases, as they are slow: for float64 arrays, and for
convolutions for which cuDNN has no engine.
"""

import chainer
import chainer.functions as F
from chainer.functions.normalization.batch_normalization import GeneralBatchNormalizationImpl

from mixprec.bridge import constants

_AVERAGES = {
    constants.CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING: 0,
    constants.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING: None,
}


def convolution_forward(x, W, b, y, pad, stride, dilation, groups, *, d_layout=0, w_layout=0, **switches):
    x, W, y = (_channels_second(array, d_layout) for array in (x, W, y))
    with chainer.no_backprop_mode():
        y[...] = _convolution(x, W, b, pad, stride, dilation, groups).array


def convolution_backward_filter(x, gy, gW, pad, stride, dilation, groups, *, d_layout=0, w_layout=0, **switches):
    x, gy, gW = (_channels_second(array, d_layout) for array in (x, gy, gW))
    with chainer.force_backprop_mode():
        W = chainer.Variable(_module(gW).zeros_like(gW))
        gW[...] = _gradient(_convolution(x, W, None, pad, stride, dilation, groups), W, gy)


def convolution_backward_data(W, x, b, y, pad, stride, dilation, groups, *, d_layout=0, w_layout=0, **switches):
    W, x, y = (_channels_second(array, d_layout) for array in (W, x, y))
    options = {"outsize": y.shape[2:], "dilate": dilation, "groups": groups}
    function = F.deconvolution_2d if x.ndim == 4 else F.deconvolution_nd
    with chainer.no_backprop_mode():
        y[...] = function(x, W, b, stride, pad, **options).array


def batch_normalization_forward_training_ex(
    x, gamma, beta, running_mean, running_var, mean, inv_std, eps, decay, is_for_conv2d, cudnn_mode, debug, d_layout=0
):
    xp, (axis, expander) = _module(x), _axes(x, is_for_conv2d, d_layout)
    general = GeneralBatchNormalizationImpl()
    y, _, _, _, found_mean, _, found_inv_std, _ = general.forward(
        axis, gamma, x, None, xp, expander, beta, eps, decay, running_mean, running_var
    )
    for found, wanted in ((found_mean, mean), (found_inv_std, inv_std)):
        if wanted is not None:
            wanted[...] = found.reshape(wanted.shape)
    return None, y, found_mean if mean is None else mean, found_inv_std if inv_std is None else inv_std


def batch_normalization_forward_inference(
    x, gamma, beta, mean, var, eps, is_for_conv2d, cudnn_mode, d_layout=constants.CUDNN_TENSOR_NCHW
):
    axis, _ = _axes(x, is_for_conv2d, d_layout)
    with chainer.no_backprop_mode():
        return F.fixed_batch_normalization(x, gamma, beta, mean, var, eps, axis).array


def batch_normalization_backward(
    x, gamma, gy, mean, inv_std, eps, is_for_conv2d, cudnn_mode, debug, d_layout=0, reserve_space=None
):
    xp, (axis, expander) = _module(x), _axes(x, is_for_conv2d, d_layout)
    general = GeneralBatchNormalizationImpl()
    gx, _, ggamma, gbeta = general.backward(axis, gamma, gy, x, None, xp, expander, mean, inv_std, eps, None, None)
    return gx, ggamma, gbeta


def pooling_forward(x, y, ksize, stride, pad, mode):
    with chainer.no_backprop_mode():
        y[...] = _pooling(x, y.shape, ksize, stride, pad, mode).array
    return y


def pooling_backward(x, y, gy, ksize, stride, pad, mode):
    with chainer.force_backprop_mode():
        x = chainer.Variable(x)
        return _gradient(_pooling(x, y.shape, ksize, stride, pad, mode), x, gy)


def activation_forward(x, mode, coef=0.0):
    with chainer.no_backprop_mode():
        return _activation(x, mode, coef).array


def activation_backward(x, y, gy, mode, coef=0.0):
    with chainer.force_backprop_mode():
        x = chainer.Variable(x)
        return _gradient(_activation(x, mode, coef), x, gy)


def softmax_forward(x, axis, algorithm):
    with chainer.no_backprop_mode():
        return (F.log_softmax if algorithm == constants.CUDNN_SOFTMAX_LOG else F.softmax)(x, axis).array


def softmax_backward(y, gy, axis, algorithm):
    if algorithm == constants.CUDNN_SOFTMAX_LOG:
        return gy - _module(y).exp(y) * gy.sum(axis=axis, keepdims=True)
    gx = y * gy
    return gx - y * gx.sum(axis=axis, keepdims=True)


def dropout_forward(x, dropout_ratio, seed):
    with chainer.using_config("train", True), chainer.no_backprop_mode():
        y, mask = F.dropout(x, dropout_ratio, return_mask=True)
    return mask, y.array


def dropout_backward(dy, dropout_ratio, reserve_space):
    return dy * reserve_space


def _module(array):
    return chainer.backend.get_array_module(array)


def _channels_second(array, layout):
    """Returns a view with the channels second."""
    return array if layout == constants.CUDNN_TENSOR_NCHW else array.transpose(0, 3, 1, 2)


def _convolution(x, W, b, pad, stride, dilation, groups):
    function = F.convolution_2d if x.ndim == 4 else F.convolution_nd
    return function(x, W, b, stride, pad, dilate=dilation, groups=groups)


def _pooling(x, y_shape, ksize, stride, pad, mode):
    if mode in _AVERAGES:
        return F.average_pooling_nd(x, ksize, stride, pad, _AVERAGES[mode])
    plain = tuple(
        (size + 2 * around - window) // step + 1
        for size, window, step, around in zip(x.shape[2:], ksize, stride, pad, strict=True)
    )
    return F.max_pooling_nd(x, ksize, stride, pad, cover_all=tuple(y_shape[2:]) != plain)


def _activation(x, mode, coef):
    functions = {
        constants.CUDNN_ACTIVATION_RELU: F.relu,
        constants.CUDNN_ACTIVATION_SIGMOID: F.sigmoid,
        constants.CUDNN_ACTIVATION_TANH: F.tanh,
    }
    return functions[mode](x) if mode in functions else F.clipped_relu(x, float(coef))


def _axes(x, is_for_conv2d, d_layout):
    """Returns the axes that a normalization goes over, and the index that broadcasts values per channel to them."""
    channels = 1 if is_for_conv2d and d_layout == constants.CUDNN_TENSOR_NCHW else x.ndim - 1
    axis = tuple(each for each in range(x.ndim) if each != channels)
    return axis, tuple(None if each in axis else slice(None) for each in range(x.ndim))


def _gradient(y, x, gy):
    """Returns the gradient with respect to x from the gradient ``gy`` with respect to y."""
    return chainer.grad([y], [x], [chainer.Variable(gy)])[0].array
