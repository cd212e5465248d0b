"""Float16 storage, float32 arithmetic, one rounding: on NumPy, and on every device for gradients that are sums.

That is what a Tensor core does. NumPy's own float16 arithmetic rounds after every addition of a sum and costs 20-30
times as much as float32. :func:`install` makes Chainer's function nodes widen their float16 inputs, run their own
float32 code, and round each output once.
"""

import functools
import importlib
import inspect
import pkgutil

import chainer
import numpy as np
from chainer.functions.array import as_strided, get_item, im2col, repeat
from chainer.functions.connection import convolution_2d, convolution_nd, embed_id
from chainer.functions.noise import simplified_dropconnect
from chainer.functions.normalization import batch_normalization as bn

from mixprec.backends import is_of_numpy
from mixprec.compat.registry import Patch

# The packages of chainer.functions that do arithmetic. Losses are not among them: they are in float32 all
# the way (mixprec.rewrite.dtype_table), and array manipulation does not round.
_ARITHMETIC = ("activation", "connection", "math", "normalization", "pooling")

# Gradients of functions that copy an element several times. Chainer's code and CuPy's atomic additions add them up one
# after the other in the dtype of the array.
_SUMMING = (as_strided.AsStridedGrad, embed_id.EmbedIDGrad, get_item.GetItemGrad, im2col.Im2ColGrad, repeat.RepeatGrad)

_MOVING = (embed_id.EmbedIDFunction,)  # it chooses rows of a table, which is large

# The dtypes of the outputs, where inputs may differ in dtype: output i has the dtype of input _MIXED[cls][i]. Batch
# norm mixes float16 activations with float32 parameters; weight gradients round to the dtype of the weight by
# themselves. Everywhere else all floating inputs share one dtype, and the outputs have it too.
_MIXED = {
    bn.BatchNormalization: (0,),
    bn.BatchNormalizationGrad: (0, 1, 1),
    bn.FixedBatchNormalization: (0,),
    bn.FixedBatchNormalizationGrad: (0, 1, 1, 2, 3),
    convolution_2d.Convolution2DGradW: (),
    convolution_nd.ConvolutionNDGradW: (),
}


def install():
    """Replaces the forward computation of every arithmetic function node of Chainer that is not replaced now."""
    for patch in (_SUMS, _ALSO, *_OF_MIXED):
        patch.apply()
    for name in _modules():
        for cls in list(vars(importlib.import_module(name)).values()):
            if inspect.isclass(cls) and cls.__module__ == name and issubclass(cls, chainer.FunctionNode):
                method = _method(cls)
                if method in cls.__dict__ and cls not in (*_SUMMING, *_MIXED, *_MOVING):
                    _EVERY.apply_to(cls, method)


@functools.cache
def _modules():
    homes = [importlib.import_module(f"chainer.functions.{name}") for name in _ARITHMETIC]
    return [f"{home.__name__}.{each.name}" for home in homes for each in pkgutil.iter_modules(home.__path__)]


def _method(cls):
    # A `forward` that dispatches to this class's own `forward_cpu` is left alone.
    return "forward_cpu" if "forward_cpu" in cls.__dict__ else "forward"


def _widening(forward, like=None):
    @functools.wraps(forward)
    def run(self, inputs):
        if not _should_widen(inputs, like):
            return forward(self, inputs)
        outputs = forward(self, tuple(_to(x, np.float16, np.float32) for x in inputs))
        # Beyond 65,504 a float16 becomes inf; the loss scale watches for that, so no warning is needed.
        with np.errstate(over="ignore"):
            if like is None:
                return tuple(_to(y, np.float32, np.float16) for y in outputs)
            narrowed = [_to(y, np.float32, inputs[i].dtype) for y, i in zip(outputs, like, strict=False)]
            return (*narrowed, *outputs[len(like) :])

    return run


def _widening_everywhere(forward):
    @functools.wraps(forward)
    def run(self, inputs):
        wide = tuple(x.astype(np.float32) if x.dtype == np.float16 else x for x in inputs)
        (y,) = forward(self, wide)
        narrow = any(x.dtype == np.float16 for x in inputs)
        with np.errstate(over="ignore"):
            return (y.astype(np.float16) if narrow and y.dtype == np.float32 else y,)

    return run


def _should_widen(inputs, like):
    halves = [x.dtype == np.float16 for x in inputs if is_of_numpy(x) and x.dtype.kind == "f"]
    return any(halves) if like is not None else bool(halves) and all(halves)


def _to(array, before, after):
    if isinstance(array, np.ndarray) and array.dtype == before:
        return array.astype(after, copy=False)
    return array


def _target(cls):
    return f"{cls.__module__}:{cls.__name__}.{_method(cls)}"


_WHEN = "mixprec.convert"
_WHY = "Without it NumPy rounds to float16 after every addition of a sum, and takes 20 to 30 times as long."
_SUMS = Patch(
    list(map(_target, _SUMMING)),
    _widening_everywhere,
    "Without it gradients of what is copied to several places are added up in float16, one after the other.",
    _WHEN,
)
_EVERY = Patch(f"chainer.functions.{{{','.join(_ARITHMETIC)}}}.*:*.{{forward,forward_cpu}}", _widening, _WHY, _WHEN)
_ALSO = Patch(_target(simplified_dropconnect.SimplifiedDropconnect), _widening, _WHY, _WHEN)
_OF_MIXED = [Patch(_target(cls), functools.partial(_widening, like=like), _WHY, _WHEN) for cls, like in _MIXED.items()]
