"""Parameters in a storage dtype: their initialization, float32 in files, and the memory order of filters.

A file has Chainer's names, Chainer's order of axes and float32, whatever the dtype of the parameters: a model of these
links and a model of Chainer's own links can load each other's files.
"""

import chainer
import numpy as np
from chainer import initializers

from mixprec.backends import primitives_of
from mixprec.base import arguments
from mixprec.base.dtypes import BFLOAT16
from mixprec.functions import checks
from mixprec.functions.layout import lay_out
from mixprec.functions.node import dense
from mixprec.precision import without_masters
from mixprec.precision.lost_weights import path_of, warn_of_lost

_FLOATS = np.dtype(np.float16), BFLOAT16, np.dtype(np.float32)


class Rounded(chainer.initializer.Initializer):
    """Draws initial values in float32, and rounds them to a storage dtype.

    Args:
        initializer: as for Chainer's links: an initializer, an array, a number, or ``None`` for ``LeCunNormal``.
        dtype: name or dtype; ``None`` for the initializer's dtype, or else ``chainer.config.dtype``, with float16 for
            ``chainer.mixed16``.
        name: name of the argument ``dtype``, for messages.
        parameter: path of the parameter, for a warning if 16 bits cannot hold its values; ``None`` for no warning.

    Raises:
        ValueError: ``dtype`` is none of the storage dtypes.
    """

    def __init__(self, initializer, dtype, name="dtype", parameter=None):
        self._parameter = parameter
        self._initializer = initializers._get_initializer(initializer)
        if dtype is None:
            dtype = chainer.get_dtype(getattr(self._initializer, "dtype", None), map_mixed16=np.float16)
        super().__init__(arguments.storage_dtype(name, dtype))
        without_masters.look_again()

    def __call__(self, array):
        device = chainer.backend.get_device_from_array(array)
        dtype = getattr(self._initializer, "dtype", None) or np.float32
        values = initializers.generate_array(self._initializer, array.shape, device.xp, dtype=dtype, device=device)
        values = values.astype(np.float32, copy=False)
        if self._parameter is not None:
            warn_of_lost(self._parameter, values, array.dtype)
        array[...] = primitives_of(array).cast(values, array.dtype)


def filter_sizes(name, in_channels, out_channels, ksize, stride, pad, nobias, dilate, groups):
    """Checks the arguments of a convolution link; returns its first three in Chainer's order, as Python's numbers.

    Raises:
        TypeError: ``nobias`` is not a bool.
        ValueError: another argument is out of its range.
    """
    if ksize is None:  # then Chainer takes the first two for out_channels and ksize
        in_channels, out_channels, ksize = None, in_channels, out_channels
    in_channels = None if in_channels is None else checks.whole(name, "in_channels", in_channels, 1)
    both = checks.pair(name, "ksize", ksize, 1)
    out_channels = checks.whole(name, "out_channels", out_channels, 1)
    for argument, value, least in (("stride", stride, 1), ("pad", pad, 0), ("dilate", dilate, 1)):
        checks.pair(name, argument, value, least)
    checks.whole(name, "groups", groups, 1)
    checks.flag(name, "nobias", nobias)
    return in_channels, out_channels, both if hasattr(ksize, "__len__") else both[0]


def rounded(name, initialW, initial_bias, dtype):
    """Returns the initializers of W and b of a link of this name, each a :class:`Rounded`.

    Raises:
        TypeError: an argument is not an initializer.
        ValueError: ``dtype`` is none of the storage dtypes.
    """
    check_initializers(name, initialW=initialW, initial_bias=initial_bias)
    weights = Rounded(initialW, dtype, f"{name}: dtype")
    return weights, Rounded(0 if initial_bias is None else initial_bias, dtype)


def check_initializers(name, **initializers):
    """Raises TypeError if an argument of a link of this name is not an initializer."""
    for argument, value in initializers.items():
        arguments.initializer(f"{name}: {argument}", value)


class StoredInFloat32:
    """A mixin for links whose files are in float32."""

    def serialize(self, serializer):
        """Saves parameters in float32, or loads and rounds them."""
        super().serialize(in_float32(serializer))


def in_float32(serializer):
    """Returns a serializer that saves float16 and bfloat16 arrays as float32, and loads them from float32."""
    return _Loading(serializer) if isinstance(serializer, chainer.Deserializer) else _Saving(serializer)


class ChannelsLast(StoredInFloat32):
    """A mixin for links with filters W of the shape (K, C, R, S) that lie in memory as (K, R, S, C).

    Some functions of Chainer and CuPy copy arrays into the order of their axes. Therefore every method of this link
    checks the memory order, and replaces the parameter's array if necessary.
    """

    def lay_out(self):
        """Gives W the memory order (K, R, S, C)."""
        if self.W.array is not None:
            lay_out(self.W)

    def __call__(self, x, *args, **kwargs):
        """Calls hooks and forward; hooks of Chainer would initialize W for ``x.shape[1]`` channels."""
        self.prepare(x)
        return super().__call__(x, *args, **kwargs)

    def prepare(self, x):
        """Initializes W for an input (N, H, W, C), and gives it its memory order."""
        if self.W.array is None:
            checks.variable(type(self).__name__, "x", x)
            checks.images(type(self).__name__, "x", x)
            self._initialize_params(x.shape[3])
        self.lay_out()

    def copy(self, mode="share"):
        """Copies as :meth:`chainer.Link.copy`."""
        result = super().copy(mode)
        result.lay_out()
        return result

    def device_resident_accept(self, visitor):
        """Follows :meth:`chainer.Link.to_device`."""
        super().device_resident_accept(visitor)
        self.lay_out()

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.lay_out()

    def _initialize_params(self, in_channels):
        super()._initialize_params(in_channels)
        self.lay_out()

    def serialize(self, serializer):
        """Saves or loads parameters; a W that loading initializes gets its memory order."""
        super().serialize(serializer)
        self.lay_out()


class _Saving(chainer.Serializer):
    """Saves float16 and bfloat16 arrays as float32."""

    def __init__(self, serializer):
        self._serializer = serializer

    def __call__(self, key, value):
        self._serializer(key, _float32(value) if _is_floating(value) else value)
        return value


class _Loading(chainer.Deserializer):
    """Loads arrays of any storage dtype and order from float32; HDF5 wants C-contiguous targets."""

    def __init__(self, serializer):
        self._serializer = serializer
        self.path = path_of(serializer, "")

    def __call__(self, key, value):
        if not _is_floating(value) or (value.dtype == np.float32 and value.flags.c_contiguous):
            return self._serializer(key, value)
        loaded = self._serializer(key, _float32(value))  # a value that is not in the file stays as it is
        if loaded is None:
            return None
        warn_of_lost(path_of(self._serializer, key), loaded, value.dtype)
        value[...] = primitives_of(value).cast(loaded, value.dtype)
        return value


def _is_floating(value):
    return isinstance(value, chainer.get_array_types()) and value.dtype in _FLOATS


def _float32(array):
    return primitives_of(array).cast(dense(array), np.dtype(np.float32))
