"""NumPy scalars, which from NumPy 2 on (NEP 50) affect the dtype of operations with arrays."""

import functools

from mixprec.compat.hooks import after_import

_NORMALIZATIONS = "chainer.functions.normalization"
_POOLING = "chainer.functions.pooling"


@after_import("chainer.optimizer:Hyperparameter.__setattr__")
def python_hyperparameters(original):
    """Without it ``optimizer.lr = np.float64(0.1)``, as ``StepShift`` sets, makes updates run in float64 on the CPU."""

    def __setattr__(self, name, value):
        object.__setattr__(self, name, _python_scalar(value))

    return __setattr__


@after_import(f"{_NORMALIZATIONS}.batch_normalization:{{,Fixed}}BatchNormalization.forward")
def python_constants_of_batch_normalizations(forward):
    """Without it a NumPy scalar as eps or decay of a batch normalization raises a type error."""

    @functools.wraps(forward)
    def wrapped(self, inputs):
        constants = self.__dict__.keys() & {"eps", "decay"}
        self.__dict__.update({name: _python_scalar(self.__dict__[name]) for name in constants})
        return forward(self, inputs)

    return wrapped


@after_import(
    f"{_NORMALIZATIONS}.batch_normalization:{{,Fixed}}BatchNormalizationGrad.__init__",
    f"{_NORMALIZATIONS}.batch_normalization:{{_BNMode,_CudnnBatchNormalizationImpl}}.__init__",
    f"{_NORMALIZATIONS}.batch_renormalization:BatchRenormalizationFunction.__init__",
    f"{_NORMALIZATIONS}.layer_normalization:LayerNormalization.__init__",
    f"{_NORMALIZATIONS}.local_response_normalization:LocalResponseNormalization{{,Grad}}.__init__",
)
def python_constants_of_normalizations(init):
    """Without it a NumPy scalar as eps, decay, alpha ... of a normalization raises a type error."""

    @functools.wraps(init)
    def wrapped(self, *args, **kwargs):
        init(self, *map(_python_scalar, args), **{name: _python_scalar(value) for name, value in kwargs.items()})

    return wrapped


def _python_scalar(value):
    import numpy

    return value.item() if isinstance(value, numpy.generic) else value


@after_import(
    f"{_POOLING}.roi_pooling_2d:ROIPooling2D{{,Grad}}.forward_cpu",
    f"{_POOLING}.roi_average_pooling_2d:ROIAveragePooling2D.{{forward,backward}}_cpu",
    f"{_POOLING}.roi_max_pooling_2d:ROIMaxPooling2D.{{forward,backward}}_cpu",
    f"{_POOLING}.roi_average_align_2d:ROIAverageAlign2D.{{forward,backward}}_cpu",
    f"{_POOLING}.roi_max_align_2d:ROIMaxAlign2D.{{forward,backward}}_cpu",
)
def roi_edges_in_float64(method):
    """Without it the CPU computes edges of regions in the dtype of the regions, and in float16 pools other bins.

    NumPy 1 multiplied the edge, a NumPy scalar, by the Python float ``spatial_scale`` in float64.
    """

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
