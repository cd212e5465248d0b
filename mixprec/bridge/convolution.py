"""``cupy.cudnn.convolution_*``, as Chainer calls them.

Arrays are (N, C, ...) and (K, C / groups, ...), or with ``CUDNN_TENSOR_NHWC`` (N, H, W, C) and (K, R, S, C / groups).
``auto_tune``, ``deterministic`` and ``tensor_core`` are ``chainer.config.autotune``, ``cudnn_deterministic`` and
``use_cudnn_tensor_core``; see :func:`mixprec.backends.cudnn.settings.current` for their meaning.
"""

from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.geometry import Convolution
from mixprec.backends.nchw import nchw_of
from mixprec.bridge import chainers_own, constants
from mixprec.bridge.calls import configured, contiguous, or_chainers_own, writing

_NCHW = constants.CUDNN_TENSOR_NCHW
_LAYOUTS = {_NCHW: "NCHW", constants.CUDNN_TENSOR_NHWC: "NHWC"}


@or_chainers_own(chainers_own.convolution_forward)
def convolution_forward(
    x, W, b, y, pad, stride, dilation, groups, *, auto_tune, tensor_core, d_layout=_NCHW, w_layout=_NCHW
):
    """Writes the convolution of ``x`` with ``W``, plus ``b`` if it is not ``None``, into ``y``."""
    layout, convolution = _layout(d_layout, w_layout), _convolution(pad, stride, dilation, groups)
    b = None if b is None else contiguous(b)
    with configured(autotune=auto_tune, use_cudnn_tensor_core=tensor_core), writing(y) as target:
        nchw_of(x).conv_fprop(contiguous(x), contiguous(W), b, target, convolution, layout)


@or_chainers_own(chainers_own.convolution_backward_filter)
def convolution_backward_filter(
    x, gy, gW, pad, stride, dilation, groups, *, deterministic, auto_tune, tensor_core, d_layout=_NCHW, w_layout=_NCHW
):
    """Writes the gradient with respect to the filters into ``gW``."""
    layout, convolution = _layout(d_layout, w_layout), _convolution(pad, stride, dilation, groups)
    with (
        configured(autotune=auto_tune, cudnn_deterministic=deterministic, use_cudnn_tensor_core=tensor_core),
        writing(gW) as target,
    ):
        nchw_of(x).conv_wgrad(contiguous(x), contiguous(gy), target, convolution, layout)


@or_chainers_own(chainers_own.convolution_backward_data)
def convolution_backward_data(
    W, x, b, y, pad, stride, dilation, groups, *, deterministic, auto_tune, tensor_core, d_layout=_NCHW, w_layout=_NCHW
):
    """Writes the transposed convolution of ``x`` with ``W``, plus ``b`` if it is not ``None``, into ``y``."""
    layout, convolution = _layout(d_layout, w_layout), _convolution(pad, stride, dilation, groups)
    b = None if b is None else contiguous(b)
    with (
        configured(autotune=auto_tune, cudnn_deterministic=deterministic, use_cudnn_tensor_core=tensor_core),
        writing(y) as target,
    ):
        nchw_of(x).conv_dgrad(contiguous(x), contiguous(W), b, target, convolution, layout)


def _layout(d_layout, w_layout):
    if d_layout != w_layout or d_layout not in _LAYOUTS:
        expected = "both CUDNN_TENSOR_NCHW (0) or both CUDNN_TENSOR_NHWC (1)"
        raise ValueError(f"d_layout, w_layout: found {d_layout!r} and {w_layout!r}, expected {expected}")
    return _LAYOUTS[d_layout]


def _convolution(pad, stride, dilation, groups):
    if len(stride) > 3:
        raise NoEngine(f"cuDNN has no convolutions with {len(stride)} spatial axes")
    return Convolution(*(tuple(map(int, numbers)) for numbers in (stride, pad, dilation)), int(groups))
