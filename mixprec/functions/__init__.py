"""Functions of variables: mixprec's own, on NHWC, and changes to Chainer's in a converted model.

The names below compute with the primitives of :mod:`mixprec.backends`: on (N, H, W, C), in float16, bfloat16 or float32
(the storage dtypes), with arithmetic in float32 and one rounding. None of them can be differentiated twice.

Reading order. ``node`` is the base of all, with ``checks`` of arguments; ``relu`` is a short example. Then in any
order: ``concatenation``, ``layout``, ``linear``, ``convolution``, ``deconvolution``, ``pooling``,
``batch_normalization`` (with what follows it, ``joined_batch_normalization``), ``local_response_normalization``,
``dropout``, ``stochastic_depth``, ``classification``, ``recurrent`` (layers of them on top of each other: ``n_step``).
Changes to Chainer's: ``resizing``, ``sums`` (gradients that meet, with ``pending`` ones) and ``widening`` (float32
inside). ``watching`` and ``layer_gradients`` call observers of functions, and of layers in the backward pass.
"""

from mixprec.backends.dropout_state import reset_dropout, serialize_dropout
from mixprec.functions.batch_normalization import batch_normalization, fixed_batch_normalization
from mixprec.functions.classification import accuracy, binary_cross_entropy, softmax_cross_entropy
from mixprec.functions.concatenation import concat
from mixprec.functions.convolution import convolution_2d
from mixprec.functions.deconvolution import deconvolution_2d
from mixprec.functions.dropout import dropout
from mixprec.functions.layout import cast, to_nchw, to_nhwc
from mixprec.functions.linear import linear
from mixprec.functions.local_response_normalization import local_response_normalization
from mixprec.functions.pooling import average_pooling_2d, global_average_pooling_2d, max_pooling_2d
from mixprec.functions.relu import relu
from mixprec.functions.stochastic_depth import stochastic_depth

__all__ = [
    "accuracy",
    "average_pooling_2d",
    "batch_normalization",
    "binary_cross_entropy",
    "cast",
    "concat",
    "convolution_2d",
    "deconvolution_2d",
    "dropout",
    "fixed_batch_normalization",
    "global_average_pooling_2d",
    "linear",
    "local_response_normalization",
    "max_pooling_2d",
    "relu",
    "reset_dropout",
    "serialize_dropout",
    "softmax_cross_entropy",
    "stochastic_depth",
    "to_nchw",
    "to_nhwc",
]
