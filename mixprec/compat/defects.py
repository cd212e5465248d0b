"""Defects of Chainer 7.8.1 that have nothing to do with NumPy or CuPy."""

import functools

from mixprec.compat import hooks
from mixprec.compat.rebind import Overlay, rebound


@hooks.after_import("chainer.functions.connection.deconvolution_2d")
def deconvolution_2d_weight_gradient(module):
    """Without it ``F.deconvolution_2d`` has no gradient for W when x needs none: shapes and arrays are mixed
    up.
    """
    original = module.Deconvolution2DFunction._set_cover_all

    @functools.wraps(original)
    def _set_cover_all(self, x, w):
        return original(self, getattr(x, "shape", x), getattr(w, "shape", w))

    module.Deconvolution2DFunction._set_cover_all = _set_cover_all


@hooks.after_import("chainer.serializers.hdf5")
def hdf5_strings(module):
    """Without it ``HDF5Deserializer`` reads the string 'abc' as "b'abc'", as h5py 3 returns bytes."""
    original = module.HDF5Deserializer.__call__

    @functools.wraps(original)
    def __call__(self, key, value):
        loaded = original(self, key, value)
        if type(value) is str and loaded is not value:
            content = self.group[key][()]
            loaded = content.decode() if isinstance(content, bytes) else loaded
        return loaded

    module.HDF5Deserializer.__call__ = __call__


@hooks.after_import("chainer.serializers.npz")
def npz_into_any_order(module):
    """Without it ``NpzDeserializer`` cannot load into arrays of CuPy that are not contiguous (NHWC filters)."""
    module.NpzDeserializer.__call__ = _into_any_order(module.NpzDeserializer.__call__)


@hooks.after_import("chainer.serializers.hdf5")
def hdf5_into_any_order(module):
    """Without it ``HDF5Deserializer`` cannot load into arrays that are not C-contiguous (NHWC filters)."""
    module.HDF5Deserializer.__call__ = _into_any_order(module.HDF5Deserializer.__call__)


def _into_any_order(original):
    @functools.wraps(original)
    def __call__(self, key, value):
        import chainer  # is complete by now

        if getattr(getattr(value, "flags", None), "c_contiguous", True):
            return original(self, key, value)
        with chainer.using_device(chainer.backend.get_device_from_array(value)):
            loaded = original(self, key, value.copy(order="C"))
            if loaded is None:
                return None
            value[...] = loaded
        return value

    return __call__


@hooks.after_import("chainer.optimizers.msvag")
def msvag_bias_correction(module):
    """Without it ``MSVAG`` forgets the power of beta in a snapshot, and a resumed run takes other steps."""
    original = module.MSVAGRule.serialize

    @functools.wraps(original)
    def serialize(self, serializer):
        original(self, serializer)
        try:
            self.beta_power = float(serializer("beta_power", self.beta_power))
        except KeyError:  # a snapshot of plain Chainer; right to the last bit or so
            self.beta_power = self.hyperparam.beta ** (self.t + 1)

    module.MSVAGRule.serialize = serialize


@hooks.after_import("chainer.iterators.multiprocess_iterator")
def prefetch_thread(module):
    """Without it every ``MultiprocessIterator`` warns that ``Thread.setDaemon`` is deprecated."""

    class Thread(module.threading.Thread):
        def setDaemon(self, daemonic):
            self.daemon = daemonic

    loop = module._PrefetchLoop
    loop.launch_thread = rebound(loop.launch_thread, threading=Overlay(module.threading, Thread=Thread))
