"""Plain Chainer's layers on a GPU, in its own layout NCHW: plans of cuDNN, and kernels of our own.

:mod:`mixprec.bridge` calls them instead of CuPy's former cuDNN bindings. A file each: ``convolution``, ``batch_norm``
(on ``planes``), ``pooling``, ``activation``, ``softmax``, ``bias``.
"""

import functools

from mixprec.backends import primitives_of
from mixprec.backends.nchw.activation import Activations
from mixprec.backends.nchw.batch_norm import PlaneBatchNorms
from mixprec.backends.nchw.convolution import PlaneConvolutions
from mixprec.backends.nchw.pooling import PlanePoolings
from mixprec.backends.nchw.softmax import Softmaxes


class Nchw(PlaneConvolutions, PlaneBatchNorms, PlanePoolings, Activations, Softmaxes):
    """On one device and CuPy's current stream. Arrays are C-contiguous, of float16, bfloat16 or float32.

    Args:
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of the device.
        cudnn: :class:`~mixprec.backends.cudnn.context.CudnnContext` of the device.
    """


def nchw_of(array):
    """Returns the :class:`Nchw` of an array's device, always the same one."""
    return _of_primitives(primitives_of(array))


@functools.cache
def _of_primitives(primitives):
    return Nchw(primitives.launcher, primitives.cudnn)
