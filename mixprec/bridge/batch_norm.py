"""``cupy.cudnn.batch_normalization_*``, as Chainer calls them.

x is (N, C, H, W) with ``is_for_conv2d``, or (N, H, W, C) with ``d_layout=CUDNN_TENSOR_NHWC`` too; otherwise channels
are the last axis. gamma, beta and statistics have the shape (C,) and any dtype; the functions compute in float32, and
return mean and inv_std in float32. All modes are computed in the same way. The fast mode overflows as rarely as the
others, so ``debug``, with which CuPy checked for overflows, has no effect.
"""

from mixprec import backends
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.geometry import BatchNorm, Saved
from mixprec.backends.nchw import nchw_of
from mixprec.bridge import chainers_own, constants
from mixprec.bridge.calls import contiguous, floating, or_chainers_own, writing

_NCHW = constants.CUDNN_TENSOR_NCHW


@or_chainers_own(chainers_own.batch_normalization_forward_training_ex)
def batch_normalization_forward_training_ex(
    x,
    gamma,
    beta,
    running_mean,
    running_var,
    mean,
    inv_std,
    eps,
    decay,
    is_for_conv2d,
    cudnn_mode,
    debug,
    d_layout=_NCHW,
):
    """Normalizes, and updates the running statistics in place, with the unbiased variance.

    Args:
        mean: array for the batch's mean; ``None`` for a new array.
        inv_std: array for the inverse standard deviation; ``None`` for a new array.
        eps: added to the variance.
        decay: decay of the running statistics.

    Returns:
        ``(None, y, mean, inv_std)``; cuDNN's reserve space, the first, is not needed.
    """
    _not_empty(x)
    x, gamma, beta = contiguous(x), floating(gamma), floating(beta)
    if decay == 1.0:
        y, found = _forward(x, gamma, beta, None, eps, decay, _in_planes(is_for_conv2d, d_layout))
    else:
        with writing(running_mean, gamma.dtype) as moved_mean, writing(running_var, gamma.dtype) as moved_var:
            running = moved_mean, moved_var
            y, found = _forward(x, gamma, beta, running, eps, decay, _in_planes(is_for_conv2d, d_layout))
    return None, y, *(_put(*pair) for pair in zip(found, (mean, inv_std), strict=True))


def batch_normalization_forward_training(*arguments, **options):
    """As :func:`batch_normalization_forward_training_ex`, without the reserve space: ``(y, mean, inv_std)``."""
    return batch_normalization_forward_training_ex(*arguments, **options)[1:]


@or_chainers_own(chainers_own.batch_normalization_forward_inference)
def batch_normalization_forward_inference(x, gamma, beta, mean, var, eps, is_for_conv2d, cudnn_mode, d_layout=_NCHW):
    """Returns ``x`` normalized with given statistics."""
    x, of_channels = contiguous(x), [floating(array) for array in (gamma, beta, mean, var)]
    if _in_planes(is_for_conv2d, d_layout):
        return nchw_of(x).batch_norm_inference(x, *of_channels, eps)
    return backends.primitives_of(x).batch_norm_inference(x, *of_channels, BatchNorm(eps))


@or_chainers_own(chainers_own.batch_normalization_backward)
def batch_normalization_backward(
    x, gamma, gy, mean, inv_std, eps, is_for_conv2d, cudnn_mode, debug, d_layout=_NCHW, reserve_space=None
):
    """Returns the gradients with respect to x, gamma and beta; the last two are float32."""
    _not_empty(x)
    x, gy, gamma, mean, inv_std = contiguous(x), contiguous(gy), *map(floating, (gamma, mean, inv_std))
    if gy.dtype != x.dtype:
        gy = gy.astype(x.dtype)
    if _in_planes(is_for_conv2d, d_layout):
        return nchw_of(x).batch_norm_backward(gy, x, gamma, mean, inv_std)
    # Without a ReLU beta is not read.
    saved, attributes = Saved(mean, inv_std), BatchNorm(eps)
    return backends.primitives_of(x).batch_norm_backward(gy, x, gamma, gamma, saved, attributes)[:3]


def _not_empty(x):
    if not x.size:
        raise NoEngine(f"an empty batch has no statistics, shape {x.shape}")


def _in_planes(is_for_conv2d, d_layout):
    return is_for_conv2d and d_layout == _NCHW


def _forward(x, gamma, beta, running, eps, decay, in_planes):
    """Returns y, and mean and inverse standard deviation."""
    if in_planes:
        y, *found = nchw_of(x).batch_norm(x, gamma, beta, running, eps, decay)
        return y, found
    y, saved = backends.primitives_of(x).batch_norm(x, gamma, beta, running, BatchNorm(eps, decay))
    return y, saved[:2]


def _put(array, target):
    """Returns an array, or if ``target`` is given, writes it there and returns the target."""
    if target is None:
        return array
    target[...] = array.reshape(target.shape)
    return target
