"""Converters from a loader's batches to a Chainer model's inputs."""

import chainer
import numpy as np
from chainer import dataset

_PADDED = 4  # channels in memory, of which the last is zero


class ToNCHW(dataset.Converter):
    """Converter that turns images into NCHW; functions under ``@chainer.dataset.converter()`` cannot be pickled."""

    def __call__(self, batch, device=None, mix=None):
        """Sends a batch to a device and views its images as NCHW.

        Args:
            batch: ``(x, t)``: images (B, H, W, C) of any dtype, labels int32 (B,).
            device: Chainer's device, or an argument of :func:`chainer.get_device`; None leaves the arrays where they
                are.
            mix: callable from images and labels on the device, both as in the batch, to the model's arguments, the
                images first and in the same layout; None for no mixing.

        Returns:
            ``(x, t)``, or the result of ``mix``: x has shape (B, C, H, W) and NHWC memory order. On the CPU it shares
            the batch's memory, if it is not mixed, and so does an array that is on the device already.
        """
        x, t = batch
        # Sent before it is transposed: a copy to a GPU would make the view's memory order NCHW.
        x, t = dataset.to_device(device, self._memory(x)), dataset.to_device(device, t)
        x, *others = (x, t) if mix is None else mix(x, t)
        return x.transpose(0, 3, 1, 2), *others

    def _memory(self, x):
        return x


class _ToPaddedNCHW(ToNCHW):
    def _memory(self, x):
        """Returns the array with four channels, of whose first three x is a view."""
        _, _, width, channels = x.shape
        if channels != _PADDED - 1 or (width > 1 and x.strides[2] != _PADDED * x.itemsize):
            raise ValueError(
                f"images of shape {x.shape} and strides {x.strides} have no fourth channel: the iterator needs "
                "pad_channels=True"
            )
        xp = chainer.backend.get_array_module(x)
        if xp is not np and _begins_at(whole := x.base, x):
            return whole[: len(x)]  # CuPy's as_strided would not hold `whole`, which DeviceBatches checks
        return xp.lib.stride_tricks.as_strided(x, (*x.shape[:3], _PADDED), x.strides)


def _begins_at(whole, x):
    return whole is not None and whole.shape[1:] == (*x.shape[1:3], _PADDED) and whole.data.ptr == x.data.ptr


#: Converter for ``StandardUpdater`` and ``Evaluator`` with the iterators of :mod:`mixprec.data`.
to_nchw = ToNCHW()

#: The same for iterators with ``pad_channels=True``, and models that :func:`mixprec.convert` has given the layout
#: ``"nhwc"``: x has shape (B, 4, H, W). Their first convolution takes the channel of zeros as it is; a view of three of
#: the four channels it would copy.
to_padded_nchw = _ToPaddedNCHW()
