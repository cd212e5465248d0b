"""Functions and classes of Chainer that use features that NumPy 2 has removed or changed, on the CPU."""

import functools

from mixprec.compat import chainer_imports
from mixprec.compat.half import widened
from mixprec.compat.hooks import after_import, around
from mixprec.compat.rebind import Overlay, overlaid


@after_import("chainer.functions.array.as_strided:AsStridedGrad.forward")
def as_strided_gradient(forward):
    """Without it the gradient of ``F.as_strided`` fails: it reads ``np.sctypes``."""
    return overlaid(forward, "np", sctypes=chainer_imports.scalar_types())


@after_import("chainer.functions.array.resize_images:compute_indices_and_weights")
def resize_images(function):
    """Without it ``F.resize_images`` fails: it reads ``np.float``."""
    return overlaid(function, "numpy", float=float)


@after_import("chainer.distributions.categorical:Categorical.log_prob")
def categorical_log_prob(log_prob):
    """Without it ``Categorical.log_prob`` fails: it adds a list to the result of ``np.meshgrid``, now a tuple."""

    def meshgrid(*args, **kwargs):
        import numpy

        return list(numpy.meshgrid(*args, **kwargs))

    return overlaid(log_prob, "numpy", meshgrid=meshgrid)


@around("chainer.functions.array.pad_sequence:PadSequence.forward")
def padding_out_of_range(original, self, xs):
    """Without it ``F.pad_sequence`` raises OverflowError for a padding outside the dtype, as -1 in uint8 is.

    NumPy 1 took such integers modulo the range of the dtype.
    """
    self.padding = _wrapped(self.padding, xs[0].dtype)
    return original(self, xs)


@after_import("chainer.dataset.convert:_concat_arrays_with_padding")
def padding_of_examples(function):
    """Without it ``concat_examples(padding=...)`` warns from NumPy 2.5 on, and refuses -1 for unsigned integers."""

    def maximum(x, y, out):
        import numpy

        return numpy.maximum(x, y, out=out)

    original = overlaid(function, "numpy", maximum=maximum)

    @functools.wraps(original)
    def concat_arrays_with_padding(arrays, padding):
        return original(arrays, _wrapped(padding, arrays[0].dtype))

    return concat_arrays_with_padding


def _wrapped(padding, dtype):
    """An integer modulo the range of an integer dtype, as NumPy 1 stored it; anything else unchanged."""
    import numpy

    if isinstance(padding, int) and dtype.kind in "iu":
        return numpy.array(padding).astype(dtype)[()]
    return padding


@after_import("chainer.links.activation.maxout:Maxout.__init__")
def maxout_initializers(original):
    """Without it ``L.Maxout`` with a function as initializer warns from NumPy 2.5 on: it sets ``array.shape``."""
    import chainer
    from chainer import initializer

    class Reshaped(initializer.Initializer):
        def __init__(self, fill, shape):
            super().__init__(getattr(fill, "dtype", None))
            self.fill, self.shape = fill, shape

        def __call__(self, array):
            self.fill(array.reshape(self.shape))

    def reshaped(fill, *shape):
        known = isinstance(fill, (initializer.Initializer, *chainer.get_array_types()))
        return Reshaped(fill, shape) if callable(fill) and not known else fill

    @functools.wraps(original)
    def __init__(self, in_size, out_size, pool_size, initialW=None, initial_bias=0):
        weight = reshaped(initialW, out_size, pool_size, -1)
        original(self, in_size, out_size, pool_size, weight, reshaped(initial_bias, out_size, pool_size))

    return __init__


@around("chainer.functions.math.sparse_matmul:_coo_matmul_cpu")
def sparse_matmul_of_float16(original, data, row, col, shape, dense, dtype):
    """Without it ``F.sparse_matmul`` fails on float16: scipy.sparse takes float32 and float64 only.

    Multiplied in float32, as Chainer does on a GPU.
    """
    return original(widened(data), row, col, shape, widened(dense), dtype)


@after_import("chainer.functions.math.fix:fix")
def fix_without_warning(fix):
    """Without it ``F.fix`` warns from NumPy 2.5 on, which deprecates ``np.fix`` for its equal ``np.trunc``."""
    backend = fix.__globals__["backend"]

    def get_array_module(*args):
        xp = backend.get_array_module(*args)
        return Overlay(xp, fix=xp.trunc)

    return overlaid(fix, "backend", get_array_module=get_array_module)


@around("chainer.variable:Variable.debug_print")
def debug_print_device(original, self):
    """Without it ``Variable.debug_print`` calls the CPU 'cpu': arrays of NumPy 2 have an attribute ``device``."""
    return original(self).replace("\n- device: cpu\n", "\n- device: CPU\n", 1)
