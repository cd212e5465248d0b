"""``cupy.cudnn``'s poolings, activations and softmax, as Chainer calls them, with mixprec's own kernels."""

from mixprec.backends.nchw import nchw_of
from mixprec.bridge import chainers_own, constants
from mixprec.bridge.calls import contiguous, or_chainers_own, writing

_POOLINGS = {
    constants.CUDNN_POOLING_MAX: "max",
    constants.CUDNN_POOLING_MAX_DETERMINISTIC: "max",
    constants.CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING: "average",
    constants.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING: "average_without_padding",
}
_ACTIVATIONS = {
    constants.CUDNN_ACTIVATION_RELU: "relu",
    constants.CUDNN_ACTIVATION_SIGMOID: "sigmoid",
    constants.CUDNN_ACTIVATION_TANH: "tanh",
    constants.CUDNN_ACTIVATION_CLIPPED_RELU: "clipped_relu",
}
_SOFTMAXES = {
    constants.CUDNN_SOFTMAX_FAST: False,
    constants.CUDNN_SOFTMAX_ACCURATE: False,
    constants.CUDNN_SOFTMAX_LOG: True,
}


@or_chainers_own(chainers_own.pooling_forward)
def pooling_forward(x, y, ksize, stride, pad, mode):
    """Pools x (N, C, ...), with two or three spatial axes, into y, whose shape gives the number of windows.

    Returns:
        y
    """
    with writing(y) as target:
        nchw_of(x).pool(contiguous(x), target, _one_of(_POOLINGS, mode), tuple(ksize), tuple(stride), tuple(pad))
    return y


@or_chainers_own(chainers_own.pooling_backward)
def pooling_backward(x, y, gy, ksize, stride, pad, mode):
    """Returns the gradient with respect to x; for max pooling it goes to the first of the largest elements."""
    arrays = map(contiguous, (x, y, gy))
    return nchw_of(x).pool_backward(*arrays, _one_of(_POOLINGS, mode), tuple(ksize), tuple(stride), tuple(pad))


@or_chainers_own(chainers_own.activation_forward)
def activation_forward(x, mode, coef=0.0):
    """Returns an activation of x; ``coef`` is the upper limit of a clipped ReLU."""
    return nchw_of(x).activation(contiguous(x), _one_of(_ACTIVATIONS, mode), coef)


@or_chainers_own(chainers_own.activation_backward)
def activation_backward(x, y, gy, mode, coef=0.0):
    """Returns the gradient with respect to x of ``y = activation_forward(x, mode, coef)``."""
    x, y, gy = map(contiguous, (x, y, gy))
    return nchw_of(x).activation_backward(x, y, gy, _one_of(_ACTIVATIONS, mode), coef)


@or_chainers_own(chainers_own.softmax_forward)
def softmax_forward(x, axis, algorithm):
    """Returns the softmax of x along an axis, or its logarithm."""
    return nchw_of(x).softmax(contiguous(x), axis, _one_of(_SOFTMAXES, algorithm))


@or_chainers_own(chainers_own.softmax_backward)
def softmax_backward(y, gy, axis, algorithm):
    """Returns the gradient with respect to x of ``y = softmax_forward(x, axis, algorithm)``."""
    return nchw_of(y).softmax_backward(contiguous(y), contiguous(gy), axis, _one_of(_SOFTMAXES, algorithm))


def _one_of(known, value):
    if value not in known:
        raise ValueError(f"mode: found {value!r}, expected one of {', '.join(map(str, known))}")
    return known[value]
