"""NumPy scalars, which from NumPy 2 on (NEP 50) no longer yield to the dtype of the array they meet."""

import functools

from mixprec.compat import hooks


@hooks.after_import("chainer.optimizer")
def python_hyperparameters(module):
    """Turns the NumPy scalars that are given as hyperparameters into Python numbers.

    Without it ``optimizer.lr = np.float64(0.1)``, as ``StepShift`` sets, makes updates on the CPU run in
    float64: a NumPy scalar no longer yields to the dtype of the array.
    """

    def __setattr__(self, name, value):
        object.__setattr__(self, name, _python_scalar(value))

    module.Hyperparameter.__setattr__ = __setattr__


@hooks.after_import(
    "chainer.functions.normalization.batch_normalization",
    "chainer.functions.normalization.batch_renormalization",
    "chainer.functions.normalization.layer_normalization",
    "chainer.functions.normalization.local_response_normalization",
)
def python_constants_of_normalizations(module):
    """Turns the NumPy scalars given as eps, decay, alpha... into Python numbers.

    Without it ``F.layer_normalization(..., eps=np.float64(1e-5))`` and the gradient of the others raise a
    type error.
    """
    for cls in list(vars(module).values()):
        if isinstance(cls, type) and cls.__module__ == module.__name__ and "__init__" in vars(cls):
            cls.__init__ = _with_python_scalars(cls.__init__)


def _with_python_scalars(init):
    @functools.wraps(init)
    def wrapped(self, *args, **kwargs):
        init(self, *map(_python_scalar, args), **{name: _python_scalar(value) for name, value in kwargs.items()})

    return wrapped


def _python_scalar(value):
    import numpy

    return value.item() if isinstance(value, numpy.generic) else value


_ROI_POOLING = ("roi_pooling_2d", "roi_average_pooling_2d", "roi_max_pooling_2d")
_ROI_ALIGN = ("roi_average_align_2d", "roi_max_align_2d")


@hooks.after_import(*(f"chainer.functions.pooling.{name}" for name in _ROI_POOLING + _ROI_ALIGN))
def roi_edges_in_float64(module):
    """Without it the CPU computes the edges of regions in the dtype of the regions, and pools other bins in
    float16.

    NumPy 1 multiplied the edge, a NumPy scalar, by the Python float ``spatial_scale`` in float64.
    """
    for name, cls in list(vars(module).items()):
        if name.startswith("ROI") and isinstance(cls, type):
            for method in ("forward_cpu", "backward_cpu"):
                if method in vars(cls):
                    setattr(cls, method, _with_float64_scale(vars(cls)[method]))


def _with_float64_scale(method):
    @functools.wraps(method)
    def wrapped(self, *args):
        import numpy

        scale = self.spatial_scale
        self.spatial_scale = numpy.float64(scale)
        try:
            return method(self, *args)
        finally:
            self.spatial_scale = scale

    return wrapped
