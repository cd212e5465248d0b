"""Defects of Chainer 7.8.1 that have nothing to do with NumPy or CuPy."""

import copy

from mixprec.compat.hooks import after_import, around
from mixprec.compat.rebind import overlaid


@around("chainer.functions.connection.deconvolution_2d:Deconvolution2DFunction._set_cover_all")
def deconvolution_2d_weight_gradient(original, self, x, w):
    """Without it ``F.deconvolution_2d`` has no gradient for W when x needs none: it mixes up shapes and arrays."""
    return original(self, getattr(x, "shape", x), getattr(w, "shape", w))


@around("chainer.functions.normalization.batch_normalization:{,Fixed}BatchNormalizationGrad.backward")
def second_derivatives_of_mixed_batch_normalization(original, self, indexes, grad_outputs):
    """Without it gradients of gradients through a float16 batch normalization with float32 gamma are an AttributeError.

    They are computed in float32 and rounded, like the first gradients.
    """
    from chainer import functions as F

    dtype = self.inputs[1].dtype
    if self.inputs[0].dtype == dtype:
        return original(self, indexes, grad_outputs)

    def widened(variables):
        return tuple(None if x is None else F.cast(x, dtype) for x in variables)

    inputs, outputs = widened(self.get_retained_inputs()), widened(self.get_retained_outputs())
    wide = copy.copy(self)
    wide.get_retained_inputs, wide.get_retained_outputs = lambda: inputs, lambda: outputs
    gradients = original(wide, indexes, widened(grad_outputs))
    return tuple(F.cast(gx, x.dtype) for gx, x in zip(gradients, self.inputs, strict=True))


@around("chainer.serializers.hdf5:HDF5Deserializer.__call__")
def hdf5_strings(original, self, key, value):
    """Without it ``HDF5Deserializer`` reads the string 'abc' as "b'abc'", as h5py 3 returns bytes."""
    loaded = original(self, key, value)
    if type(value) is str and loaded is not value:
        content = self.group[key][()]
        loaded = content.decode() if isinstance(content, bytes) else loaded
    return loaded


@around(
    "chainer.serializers.hdf5:HDF5Deserializer.__call__",
    why="Without it ``HDF5Deserializer`` cannot load into arrays that are not C-contiguous (NHWC filters).",
)
@around(
    "chainer.serializers.npz:NpzDeserializer.__call__",
    why="Without it ``NpzDeserializer`` cannot load into arrays of CuPy that are not contiguous (NHWC filters).",
)
def into_any_order(original, self, key, value):
    import chainer  # is complete by now

    if getattr(getattr(value, "flags", None), "c_contiguous", True):
        return original(self, key, value)
    with chainer.using_device(chainer.backend.get_device_from_array(value)):
        loaded = original(self, key, value.copy(order="C"))
        if loaded is None:
            return None
        value[...] = loaded
    return value


@around("chainer.optimizers.msvag:MSVAGRule.serialize")
def msvag_bias_correction(original, self, serializer):
    """Without it ``MSVAG`` forgets the power of beta in a snapshot, and a resumed run takes other steps."""
    original(self, serializer)
    try:
        self.beta_power = float(serializer("beta_power", self.beta_power))
    except KeyError:  # a snapshot of plain Chainer; correct to about the last bit
        self.beta_power = self.hyperparam.beta ** (self.t + 1)


@after_import("chainer.iterators.multiprocess_iterator:_PrefetchLoop.launch_thread")
def prefetch_thread(launch_thread):
    """Without it every ``MultiprocessIterator`` warns that ``Thread.setDaemon`` is deprecated."""

    class Thread(launch_thread.__globals__["threading"].Thread):
        def setDaemon(self, daemonic):
            self.daemon = daemonic

    return overlaid(launch_thread, "threading", Thread=Thread)
