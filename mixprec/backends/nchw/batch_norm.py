"""Batch normalization of arrays (N, C, *spatial) on a CUDA device: three launches each way, one for inference."""

import numpy as np

from mixprec.backends.cuda.base import ceil_div
from mixprec.backends.nchw.planes import FILE, Planes, planes_of

_FLOAT = np.dtype(np.float32)
_INVSTD, _VARIANCE = range(2)  # Spread in batch_norm.cuh
_COMBINED = 8  # channels for a block that combines parts, see batch_norm.cuh


class PlaneBatchNorms(Planes):
    """The batch normalization of ``cupy.cudnn``, for each channel (``CUDNN_BATCHNORM_SPATIAL``).

    Arrays like ``x`` are (N, C, *spatial), C-contiguous and in a storage dtype; vectors per channel are (C,) float32.
    """

    def batch_norm(self, x, gamma, beta, running, eps, decay):
        """Normalizes by the statistics of the batch.

        Args:
            x: (N, C, *spatial).
            gamma: (C,).
            beta: (C,).
            running: ``None``, or mean and variance (C,), which become ``decay`` of themselves and ``1 - decay`` of the
                batch's; its variance for them is the unbiased one.
            eps: added to the variance.
            decay: see ``running``.

        Returns:
            ``(y, mean, invstd)``: the result like ``x``, and ``1 / sqrt(variance + eps)`` of the batch with its mean.

        Raises:
            ValueError: the batch is empty.
        """
        images, channels, pixels = planes_of(x)
        if not images * pixels:
            raise ValueError(f"an empty batch has no statistics: batch normalization of an array of shape {x.shape}")
        mean, invstd = (self._empty((channels,), _FLOAT) for _ in range(2))
        tiling = self._tiling([x], writes=False)
        partial = self._empty((tiling.parts, 3, channels), _FLOAT)
        self._run_planes("batch_norm_planes_statistics", tiling, [x], [self._address(partial)])
        arguments = [*map(self._address, (x, partial)), tiling.parts, channels, pixels]
        arguments += map(self._address, (mean, invstd))
        arguments += [*map(self._address_or_0, running or (None, None)), float(decay), float(eps)]
        blocks = ceil_div(channels, _COMBINED)
        self.kernels.launch(FILE, "batch_norm_planes_finalize", blocks, arguments, x.dtype, tiling.width)
        return self._normalized(x, (gamma, beta, mean, invstd), _INVSTD, 0.0), mean, invstd

    def batch_norm_inference(self, x, gamma, beta, mean, variance, eps):
        """Returns the normalization by given statistics, like ``x``; arguments as for :meth:`batch_norm`."""
        return self._normalized(x, (gamma, beta, mean, variance), _VARIANCE, eps)

    def batch_norm_backward(self, dy, x, gamma, mean, invstd):
        """Returns the gradients of :meth:`batch_norm`.

        Args:
            dy: like ``x``.
            x: as it was given.
            gamma: as it was given.
            mean: as it was returned.
            invstd: as it was returned.

        Returns:
            ``(dx, dgamma, dbeta)``: like ``x``, (C,) and (C,) float32.
        """
        images, channels, pixels = planes_of(x)
        dgamma, dbeta, slope, offset = (self._empty((channels,), _FLOAT) for _ in range(4))
        dx = self._empty(x.shape, x.dtype)
        tiling = self._tiling([dy, x], writes=False)
        partial = self._empty((tiling.parts, 2, channels), _FLOAT)
        self._run_planes(
            "batch_norm_planes_backward_sums", tiling, [dy, x], [self._address(mean), self._address(partial)]
        )
        arguments = [self._address(partial), tiling.parts, images * pixels, channels]
        arguments += map(self._address, (gamma, invstd, dgamma, dbeta, slope, offset))
        blocks = ceil_div(channels, _COMBINED)
        self.kernels.launch("batch_norm_channels", "batch_norm_planes_backward_finalize", blocks, arguments, _FLOAT)
        parameters = [*map(self._address, (gamma, mean, invstd, slope, offset))]
        tiling = self._tiling([dy, x, dx], writes=True)
        self._run_planes("batch_norm_planes_backward_apply", tiling, [dy, x, dx], parameters)
        return dx, dgamma, dbeta

    def _normalized(self, x, parameters, spread, eps):
        """Returns ``gamma * (x - mean) * invstd + beta``.

        Args:
            x: (N, C, *spatial).
            parameters: gamma, beta, mean, and invstd or variance.
            spread: which of both.
            eps: added to a variance.
        """
        y = self._empty(x.shape, x.dtype)
        arguments = [*map(self._address, parameters), spread, float(eps)]
        self._run_planes("batch_norm_planes_apply", self._tiling([x, y], writes=True), [x, y], arguments)
        return y
