"""Convolution of images (N, H, W, C) together with the batch normalization before or after it."""

import numpy as np

from mixprec.functions import checks, layer_gradients
from mixprec.functions.batch_normalization import attributes_of, check_batch, types_of
from mixprec.functions.convolution import FilterNode, convolution_of


def convolution_batch_normalization(
    x,
    W,
    gamma,
    beta,
    stride=1,
    pad=0,
    *,
    dilate=1,
    groups=1,
    eps=2e-5,
    running_mean=None,
    running_var=None,
    decay=0.9,
    add=None,
    relu=False,
):
    """Convolves without a bias and normalizes the result, as one node: for training.

    It computes what :func:`~mixprec.functions.convolution_2d` and :func:`~mixprec.functions.batch_normalization` would;
    a device may take the statistics from inside the convolution.

    Args:
        x: (N, H, W, C) in a storage dtype.
        W: filters as in :func:`~mixprec.functions.convolution_2d`.
        gamma: (K,) float32.
        beta: (K,) float32.
        stride: as in :func:`~mixprec.functions.convolution_2d`.
        pad: as in :func:`~mixprec.functions.convolution_2d`.
        dilate: as in :func:`~mixprec.functions.convolution_2d`.
        groups: as in :func:`~mixprec.functions.convolution_2d`.
        eps: as in :func:`~mixprec.functions.batch_normalization`.
        running_mean: as in :func:`~mixprec.functions.batch_normalization`.
        running_var: as in :func:`~mixprec.functions.batch_normalization`.
        decay: as in :func:`~mixprec.functions.batch_normalization`.
        add: as in :func:`~mixprec.functions.batch_normalization`.
        relu: as in :func:`~mixprec.functions.batch_normalization`.

    Returns:
        Variable (N, OH, OW, K).
    """
    running = checks.running_statistics(ConvolutionBatchNormalization.name, running_mean, running_var)
    node = ConvolutionBatchNormalization(
        convolution_of(ConvolutionBatchNormalization.name, stride, pad, dilate, groups),
        attributes_of(ConvolutionBatchNormalization.name, eps, decay, relu),
        running,
    )
    return node.apply((x, W, gamma, beta) if add is None else (x, W, gamma, beta, add))[0]


def batch_normalization_relu_convolution_2d(
    x,
    sums,
    gamma,
    beta,
    W,
    stride=1,
    pad=0,
    *,
    dilate=1,
    groups=1,
    eps=2e-5,
    running_mean=None,
    running_var=None,
    decay=0.9,
    statistics=False,
):
    """Convolves ``relu(batch_normalization(x))``, which is never written to memory: for training.

    Args:
        x: (N, H, W, C) in a storage dtype, from :func:`~mixprec.functions.convolution_2d` with ``statistics``.
        sums: (2, C) float32, from the same call.
        gamma: (C,) float32.
        beta: (C,) float32.
        W: filters as in :func:`~mixprec.functions.convolution_2d`.
        stride: as in :func:`~mixprec.functions.convolution_2d`.
        pad: as in :func:`~mixprec.functions.convolution_2d`; the zeros are around the activations.
        dilate: as in :func:`~mixprec.functions.convolution_2d`.
        groups: as in :func:`~mixprec.functions.convolution_2d`.
        eps: as in :func:`~mixprec.functions.batch_normalization`.
        running_mean: as in :func:`~mixprec.functions.batch_normalization`.
        running_var: as in :func:`~mixprec.functions.batch_normalization`.
        decay: as in :func:`~mixprec.functions.batch_normalization`.
        statistics: as in :func:`~mixprec.functions.convolution_2d`.

    Returns:
        As :func:`~mixprec.functions.convolution_2d`.
    """
    running = checks.running_statistics(BatchNormalizationReLUConvolution2D.name, running_mean, running_var)
    name = BatchNormalizationReLUConvolution2D.name
    node = BatchNormalizationReLUConvolution2D(
        convolution_of(name, stride, pad, dilate, groups),
        attributes_of(name, eps, decay, relu=True),
        running,
        checks.array(name, "sums", sums),
        checks.flag(name, "statistics", statistics),
    )
    (y,) = node.apply((x, gamma, beta, W))
    return (y, node.sums) if statistics else y


class ConvolutionBatchNormalization(FilterNode):
    """See :func:`convolution_batch_normalization`; inputs x, W, gamma, beta and perhaps what is added."""

    name = "convolution_batch_normalization"
    takes_two_terms = True

    def __init__(self, convolution, attributes, running):
        super().__init__(convolution)
        self._attributes = attributes
        self._running = running
        self.options = convolution, types_of(running)

    def check(self, x, W, gamma, beta, add=None):
        self.check_convolved(x, W)
        checks.normalization(self.name, gamma, beta, self._running, len(W))
        if add is not None:
            checks.same_dtype(self.name, "add", add, "x", x)
            expected = self._out_shape(x, W.shape[2:], len(W))
            if add.shape != expected:
                raise ValueError(f"{self.name}: add must have the shape of the result, {expected}; found {add.shape}")

    def _out_shape(self, x, filter_size, filters):
        return (len(x), *self.convolution.out_size(x.shape[1:3], filter_size), filters)

    def compute(self, primitives, x, w, gamma, beta, add=None):
        self.check_padding(x, w)
        check_batch(self.name, self._out_shape(x, w.shape[1:3], len(w)))
        self.retain_inputs((0, 1, 2, 3))
        self._z, y, self._saved = primitives.conv_batch_norm(
            x,
            w,
            self.convolution,
            gamma,
            beta,
            self._running,
            self._attributes,
            add=add,
        )
        return (y,)

    def gradients(self, primitives, indexes, dy, plus=None):
        x, w, gamma, beta = self.retained()
        dz, dgamma, dbeta, dadd = primitives.batch_norm_backward(
            dy, self._z, gamma, beta, self._saved, self._attributes, add=len(self.inputs) == 5, plus=plus
        )
        if layer_gradients.now.observer is not None:
            layer_gradients.tell_scales(
                self.inputs[2:4],
                self._z,
                dy,
                (gamma, beta),
                self._saved,
                self._attributes,
                primitives=primitives,
                plus=plus,
                dadd=dadd,
            )
            layer_gradients.now.observer.filters(self.inputs[1:2], x, dz, w.shape, self.convolution)
        dw = self.wgrad(primitives, x, dz, w.shape) if 1 in indexes else None
        return (
            primitives.conv_dgrad(dz, w, self.convolution, x.shape) if 0 in indexes else None,
            dw,
            dgamma,
            dbeta,
            dadd,
        )[: len(self.inputs)]


class BatchNormalizationReLUConvolution2D(FilterNode):
    """See :func:`batch_normalization_relu_convolution_2d`; inputs x, gamma, beta, W.

    Attributes:
        sums: of the output, with ``statistics``.
    """

    name = "batch_normalization_relu_convolution_2d"
    filter_input = 3
    sums = None

    def __init__(self, convolution, attributes, running, in_sums, statistics):
        super().__init__(convolution)
        self._attributes = attributes
        self._running = running
        self._in_sums = in_sums
        self._statistics = statistics
        self.options = convolution, types_of((*(running or ()), in_sums))

    def check(self, x, gamma, beta, W):
        self.check_convolved(x, W)
        checks.normalization(self.name, gamma, beta, self._running, x.shape[3])
        if self._in_sums.shape != (2, x.shape[3]) or self._in_sums.dtype != np.float32:
            raise ValueError(
                f"{self.name}: sums must be (2, {x.shape[3]}) float32, from convolution_2d(..., statistics=True); "
                f"found {self._in_sums.shape} {self._in_sums.dtype}"
            )

    def compute(self, primitives, x, gamma, beta, w):
        check_batch(self.name, x.shape)
        self.retain_inputs((0, 1, 2, 3))
        self._affine, self._saved = primitives.batch_norm_affine(
            self._in_sums, x.size // x.shape[3], gamma, beta, self._running, self._attributes
        )
        found = primitives.conv_fprop(x, w, self.convolution, prologue=self._affine, statistics=self._statistics)
        if not self._statistics:
            return (found,)
        y, self.sums = found
        return (y,)

    def gradients(self, primitives, indexes, dy):
        x, gamma, beta, w = self.retained()
        if layer_gradients.now.observer is not None:
            layer_gradients.now.observer.filters(self.inputs[3:4], x, dy, w.shape, self.convolution, self._affine)
        dw = self.wgrad(primitives, x, dy, w.shape, prologue=self._affine) if 3 in indexes else None
        if indexes == (3,):
            return None, None, None, dw
        dh = primitives.conv_dgrad(dy, w, self.convolution, x.shape)
        dx, dgamma, dbeta, _ = primitives.batch_norm_backward(dh, x, gamma, beta, self._saved, self._attributes)
        if layer_gradients.now.observer is not None:
            layer_gradients.tell_scales(
                self.inputs[1:3], x, dh, (gamma, beta), self._saved, self._attributes, primitives=primitives
            )
        return dx, dgamma, dbeta, dw
