"""Functions and classes of Chainer that call what NumPy 2 lacks, or does differently, on the CPU."""

import functools

from mixprec.compat import hooks, importing
from mixprec.compat.half import widened
from mixprec.compat.rebind import Overlay, rebound


@hooks.after_import("chainer.functions.array.as_strided")
def as_strided_gradient(module):
    """Without it the gradient of ``F.as_strided`` fails: it reads ``np.sctypes``."""
    numpy = Overlay(module.np, sctypes=importing.scalar_types())
    module.AsStridedGrad.forward = rebound(module.AsStridedGrad.forward, np=numpy)


@hooks.after_import("chainer.functions.array.resize_images")
def resize_images(module):
    """Without it ``F.resize_images`` fails: it reads ``np.float``."""
    numpy = Overlay(module.numpy, float=float)
    module.compute_indices_and_weights = rebound(module.compute_indices_and_weights, numpy=numpy)


@hooks.after_import("chainer.distributions.categorical")
def categorical_log_prob(module):
    """Without it ``Categorical.log_prob`` fails: it adds a list to the result of ``np.meshgrid``, now a
    tuple.
    """

    def meshgrid(*args, **kwargs):
        return list(module.numpy.meshgrid(*args, **kwargs))

    numpy = Overlay(module.numpy, meshgrid=meshgrid)
    module.Categorical.log_prob = rebound(module.Categorical.log_prob, numpy=numpy)


@hooks.after_import("chainer.functions.array.pad_sequence")
def padding_out_of_range(module):
    """Without it ``F.pad_sequence`` raises OverflowError for a padding outside the dtype, as -1 in uint8 is.

    NumPy 1 took such integers modulo the range of the dtype.
    """
    original = module.PadSequence.forward

    @functools.wraps(original)
    def forward(self, xs):
        self.padding = _wrapped(self.padding, xs[0].dtype)
        return original(self, xs)

    module.PadSequence.forward = forward


@hooks.after_import("chainer.dataset.convert")
def padding_of_examples(module):
    """Without it ``concat_examples(padding=...)`` warns from NumPy 2.5 on, and refuses -1 for unsigned integers."""

    def maximum(x, y, out):
        return module.numpy.maximum(x, y, out=out)

    original = rebound(module._concat_arrays_with_padding, numpy=Overlay(module.numpy, maximum=maximum))

    @functools.wraps(original)
    def concat_arrays_with_padding(arrays, padding):
        return original(arrays, _wrapped(padding, arrays[0].dtype))

    module._concat_arrays_with_padding = concat_arrays_with_padding


def _wrapped(padding, dtype):
    """An integer modulo the range of an integer dtype, as NumPy 1 stored it; anything else unchanged."""
    import numpy

    if isinstance(padding, int) and dtype.kind in "iu":
        return numpy.array(padding).astype(dtype)[()]
    return padding


@hooks.after_import("chainer.links.activation.maxout")
def maxout_initializers(module):
    """Without it ``L.Maxout`` with a function as initializer warns from NumPy 2.5 on: it sets ``array.shape``."""
    original = module.Maxout.__init__

    class Reshaped(module.initializer.Initializer):
        def __init__(self, fill, shape):
            super().__init__(getattr(fill, "dtype", None))
            self.fill, self.shape = fill, shape

        def __call__(self, array):
            self.fill(array.reshape(self.shape))

    def reshaped(fill, *shape):
        known = isinstance(fill, (module.initializer.Initializer, *module.chainer.get_array_types()))
        return Reshaped(fill, shape) if callable(fill) and not known else fill

    @functools.wraps(original)
    def __init__(self, in_size, out_size, pool_size, initialW=None, initial_bias=0):
        weight = reshaped(initialW, out_size, pool_size, -1)
        original(self, in_size, out_size, pool_size, weight, reshaped(initial_bias, out_size, pool_size))

    module.Maxout.__init__ = __init__


@hooks.after_import("chainer.functions.math.sparse_matmul")
def sparse_matmul_of_float16(module):
    """Without it ``F.sparse_matmul`` fails on float16: scipy.sparse takes float32 and float64 only.

    Multiplied in float32, as Chainer does on a GPU.
    """
    original = module._coo_matmul_cpu

    @functools.wraps(original)
    def coo_matmul_cpu(data, row, col, shape, dense, dtype):
        return original(widened(data), row, col, shape, widened(dense), dtype)

    module._coo_matmul_cpu = coo_matmul_cpu


@hooks.after_import("chainer.functions.math.fix")
def fix_without_warning(module):
    """Without it ``F.fix`` warns from NumPy 2.5 on, which deprecates ``np.fix`` for its equal ``np.trunc``."""

    def get_array_module(*args):
        xp = module.backend.get_array_module(*args)
        return Overlay(xp, fix=xp.trunc)

    module.fix = rebound(module.fix, backend=Overlay(module.backend, get_array_module=get_array_module))


@hooks.after_import("chainer.variable")
def debug_print_device(module):
    """Without it ``Variable.debug_print`` calls the CPU 'cpu': arrays of NumPy 2 have an attribute
    ``device``.
    """
    original = module.Variable.debug_print

    @functools.wraps(original)
    def debug_print(self):
        return original(self).replace("\n- device: cpu\n", "\n- device: CPU\n", 1)

    module.Variable.debug_print = debug_print
