"""Convolution of images (N, H, W, C)."""

import functools

import chainer
import numpy as np

from mixprec.backends import primitives_of, wgrad_stream
from mixprec.backends.geometry import Convolution
from mixprec.functions import checks, layer_gradients
from mixprec.functions.node import Node, dense


def convolution_2d(x, W, b=None, stride=1, pad=0, *, dilate=1, groups=1, relu=False, statistics=False):
    """Convolves images, as :func:`chainer.functions.convolution_2d` does, in NHWC.

    Args:
        x: (N, H, W, C) in a storage dtype. C may be padded with zeros up to the next multiple of 8, see
            :func:`~mixprec.functions.to_nhwc`.
        W: filters (K, C / groups, R, S), Chainer's shape, in the dtype of ``x``. They are copied unless the memory is
            (K, R, S, C / groups), as in :class:`mixprec.links.Convolution2D`; the gradient has this memory order.
        b: bias (K,) in the dtype of ``x`` or float32.
        stride: steps of the filter, in pixels; a number or (vertical, horizontal).
        pad: rows and columns of zeros on every side; a number or (vertical, horizontal).
        dilate: steps between two elements of the filter; a number or (vertical, horizontal).
        groups: number of groups of channels that are convolved separately.
        relu: whether a ReLU follows.
        statistics: whether to return sums for a following batch normalization, too; not with ``relu``.

    Returns:
        Variable (N, OH, OW, K); with ``statistics`` ``(variable, sums)``, sums being an array (2, K) float32.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape does not fit.

    Example:
        >>> import numpy as np
        >>> from mixprec import functions
        >>> x = np.ones((2, 8, 8, 4), np.float16)  # (N, H, W, C)
        >>> W = np.ones((16, 3, 3, 4), np.float16).transpose(0, 3, 1, 2)  # (K, C, R, S), channels last in memory
        >>> y = functions.convolution_2d(x, W, stride=2, pad=1)
        >>> y.shape, float(y.array[0, 1, 1, 0])  # inside an image: the sum of 3 * 3 * 4 ones
        ((2, 4, 4, 16), 36.0)
        >>> y, sums = functions.convolution_2d(x, W, pad=1, statistics=True)
        >>> gamma, beta = np.ones(16, np.float32), np.zeros(16, np.float32)
        >>> functions.batch_normalization(y, gamma, beta, sums=sums).shape
        (2, 8, 8, 16)
    """
    checks.flag(Convolution2D.name, "statistics", statistics)
    if checks.flag(Convolution2D.name, "relu", relu) and statistics:
        raise ValueError("convolution_2d: statistics are taken before a ReLU: relu and statistics exclude each other")
    convolution = convolution_of(Convolution2D.name, stride, pad, dilate, groups)
    arrays = [each.array if isinstance(each, chainer.Variable) else each for each in (x, W)]
    if all(getattr(array, "ndim", None) == 4 for array in arrays) and x.dtype == W.dtype:
        form = form_of(arrays[0], W.shape, x.dtype, convolution)
        if form is not convolution:
            (x,), convolution = ConvolutionImages(form, x.dtype).apply((x,)), form
    node = Convolution2D(convolution, relu=relu, statistics=statistics)
    (y,) = node.apply((x, W) if b is None else (x, W, b))
    return (y, node.sums) if statistics else y


def convolution_of(function, stride, pad, dilate, groups):
    """Returns the :class:`~mixprec.backends.geometry.Convolution` of Chainer's arguments; the name is for messages."""
    return Convolution(
        checks.pair(function, "stride", stride, 1),
        checks.pair(function, "pad", pad, 0),
        checks.pair(function, "dilate", dilate, 1),
        checks.whole(function, "groups", groups, 1),
    )


def form_of(x, w_shape, dtype, convolution):
    """Returns the convolution of images in the form that the device of an array prefers, or ``convolution`` itself.

    Args:
        x: array (N, H, W, C).
        w_shape: (K, C / groups, R, S).
        dtype: the storage dtype in which they are convolved.
        convolution: :class:`~mixprec.backends.geometry.Convolution`.
    """
    k, c, r, s = w_shape
    return primitives_of(x).conv_form(x.shape, (k, r, s, c), dtype, convolution)


class ConvolutionImages(Node):
    """Images in the form of a convolution, which reads them in both passes.

    Args:
        form: :class:`~mixprec.backends.geometry.Convolution` of :func:`form_of`.
        dtype: storage dtype of the result.
    """

    name = "conv_images"
    image_inputs = (0,)
    takes_strided = True
    is_repeatable = True

    def __init__(self, form, dtype):
        self._form, self._dtype = form, dtype

    def compute(self, primitives, x):
        self._x = x.shape, x.dtype
        planes = x.transpose(0, 3, 1, 2)
        if planes.flags.c_contiguous:
            return (primitives.conv_images(planes, self._form, self._dtype, channels_first=True),)
        return (primitives.conv_images(dense(x), self._form, self._dtype),)

    def gradients(self, primitives, indexes, dy):
        return (primitives.conv_images_backward(dy, self._form, *self._x),)


class FilterNode(Node):
    """A node with filters among its inputs.

    Args:
        convolution: :class:`~mixprec.backends.geometry.Convolution`.
    """

    image_inputs = (0,)
    filter_input = 1

    def __init__(self, convolution):
        self.convolution = self.options = convolution

    def check_filters(self, W, x):
        """Raises TypeError or ValueError if filters do not fit the dtype of ``x`` or the groups."""
        if W.ndim != 4:
            raise ValueError(f"{self.name}: W must be (K, C / groups, R, S); found shape {W.shape}")
        checks.same_dtype(self.name, "W", W, "x", x)
        if W.shape[0] % self.convolution.groups:
            raise ValueError(
                f"{self.name}: {self.convolution.groups} groups do not divide the {W.shape[0]} filters of W {W.shape}"
            )

    def check_convolved(self, x, W):
        """Raises TypeError or ValueError if images and filters of a convolution do not fit."""
        groups, channels = self.convolution.groups, self.convolution.channels
        if channels is None and W.ndim == 4:
            channels = W.shape[1] * groups
        checks.images(self.name, "x", x, channels, padded=groups == 1)
        self.check_filters(W, x)
        out_size = self.convolution.out_size(x.shape[1:3], W.shape[2:])
        if min(out_size) <= 0:
            raise ValueError(
                f"{self.name}: x {x.shape} with pad {self.convolution.pad} is smaller than the filters, W {W.shape}"
            )

    def check_padding(self, x, w):
        """Raises ValueError if channels of x beyond the filter's channels are not zeros, on NumPy only."""
        channels = w.shape[3] * self.convolution.groups
        if x.shape[3] > channels and type(x) is np.ndarray and x[..., channels:].any():
            raise ValueError(
                f"{self.name}: x must be (N, H, W, {channels}), with only zeros beyond; found shape {x.shape}"
            )

    def wgrad(self, primitives, x, dy, w_shape):
        """Returns the gradient of filters (K, R, S, C / groups) as (K, C / groups, R, S).

        To be called before the gradient of x is computed: a side stream may compute this one at the same time.
        """
        compute = functools.partial(primitives.conv_wgrad, x, dy, self.convolution, w_shape)
        if wgrad_stream.now.allowed:
            gradient = wgrad_stream.run(self, self.filter_input, compute, (x, dy))
        else:
            gradient = compute()
        return gradient.transpose(0, 3, 1, 2)


class Convolution2D(FilterNode):
    """See :func:`convolution_2d`; inputs x, W and perhaps b.

    Args:
        convolution: :class:`~mixprec.backends.geometry.Convolution`.
        relu: whether a ReLU follows.
        statistics: as for :meth:`~mixprec.backends.primitives.Primitives.conv_fprop`.

    Attributes:
        sums: sums of the output, with ``statistics``; ``None`` if the device has chosen not to take them.
    """

    name = "convolution_2d"
    is_repeatable = True
    sums = None

    def __init__(self, convolution, *, relu, statistics):
        super().__init__(convolution)
        self._relu = relu
        self._statistics = statistics

    def check(self, x, W, b=None):
        self.check_convolved(x, W)
        if b is not None:
            checks.bias(self.name, b, len(W), x)

    def compute(self, primitives, x, w, b=None):
        self.check_padding(x, w)
        self.retain_inputs((0, 1))
        self._bias_dtype = None if b is None else b.dtype
        if self._statistics:
            y, self.sums = primitives.conv_fprop(x, w, self.convolution, b, statistics=self._statistics)
            return (y,)
        if self._relu:
            self.retain_outputs((0,))
        return (primitives.conv_fprop(x, w, self.convolution, b, relu=self._relu),)

    def gradients(self, primitives, indexes, dy):
        x, w = self.retained()
        if self._relu:
            dy = primitives.relu_backward(dy, self.retained_output())
        if layer_gradients.now.observer is not None:
            layer_gradients.now.observer.filters(self.inputs[1:], x, dy, w.shape, self.convolution)
        dw = self.wgrad(primitives, x, dy, w.shape) if 1 in indexes else None
        return (
            primitives.conv_dgrad(dy, w, self.convolution, x.shape) if 0 in indexes else None,
            dw,
            primitives.bias_grad(dy, self._bias_dtype) if 2 in indexes else None,
        )[: len(self.inputs)]
