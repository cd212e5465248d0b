"""The zoo: functions of the user's own in the trunk, in both styles of Chainer."""

import chainer
import chainer.functions as F
import numpy as np

from tests.zoo.trunks import middle


class ChannelShift(chainer.FunctionNode):
    """Of the user's: what it calls channels is axis 1."""

    def forward(self, inputs):
        (x,) = inputs
        y = x.copy()
        y[:, 1:] += x[:, :-1] * np.arange(1, x.shape[1], dtype=x.dtype)[None, :, None, None]
        return (y,)

    def backward(self, indexes, grad_outputs):
        (gy,) = grad_outputs
        factors = np.arange(1, gy.shape[1], dtype=gy.dtype)[None, :, None, None]
        shifted = gy[:, 1:] * F.broadcast_to(chainer.as_variable(factors), gy[:, 1:].shape)
        return (gy + F.pad(shifted, [(0, 0), (0, 1), (0, 0), (0, 0)], "constant"),)


class OldChannelMean(chainer.Function):
    """Of the user's, in the old style and with an axis; two inputs, two outputs, in memory of its own."""

    def forward(self, inputs):
        a, b = inputs
        mean = np.ascontiguousarray(a).reshape(a.shape[0], a.shape[1], -1).mean(axis=2)
        return b + mean[:, :, None, None], mean

    def backward(self, inputs, grad_outputs):
        gy, gmean = grad_outputs
        total = gy.sum(axis=(2, 3)) + (0 if gmean is None else gmean)
        pixels = inputs[0].shape[2] * inputs[0].shape[3]
        return np.broadcast_to(total[:, :, None, None] / pixels, inputs[0].shape).astype(gy.dtype), gy


@middle()
def user_function_of_channels(self, h):
    (h,) = ChannelShift().apply((h,))
    return F.relu(h) * 0.1


@middle()
def user_functions_in_the_old_style(self, h):
    y, mean = OldChannelMean()(h, h * 2)
    return y * F.broadcast_to(F.sigmoid(mean)[:, :, None, None], y.shape)
