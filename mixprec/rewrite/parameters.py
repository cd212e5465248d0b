"""Dtypes and memory order of the parameters and statistics of a link: to those of a conversion, and back.

``convert`` and ``revert`` call it for each link, before and after training; :func:`order` runs on a new device, too.
"""

import chainer
import chainer.links as L
import numpy as np

from mixprec.base import arguments
from mixprec.base.dtypes import STORAGE_DTYPES, is_half
from mixprec.functions.node import dense
from mixprec.precision.lost_weights import lost
from mixprec.precision.master_arrays import keep_master
from mixprec.precision.storage import Rounded, lay_out
from mixprec.precision.weight_copies import compute_in, exact, rounded
from mixprec.rewrite.multi_node_links import is_multi_node

_FILTERS = (L.Convolution2D, L.Deconvolution2D)
# Links whose parameters are multiplied with activations. All others keep float32 parameters.
_MULTIPLIED = (
    *(*_FILTERS, L.ConvolutionND, L.DeconvolutionND, L.DepthwiseConvolution2D, L.DilatedConvolution2D),
    *(L.Bilinear, L.EmbedID, L.Linear, L.LocalConvolution2D),
)
_NORMALIZATIONS = (
    *(L.BatchNormalization, L.BatchRenormalization, L.DecorrelatedBatchNormalization),
    *(L.GroupNormalization, L.LayerNormalization),
)
_OTHERS = (L.Bias, L.PReLU, L.Scale, L.Swish)
# Chainer's other functions do not know bfloat16.
_IN_BFLOAT16 = (*_FILTERS, L.Linear)

_STATISTICS_DTYPE = "_highprec_dtype"  # attribute of Chainer's batch normalizations

_CASTABLE = ("float16", "bfloat16", "float32")


def dtype_of(link, compute):
    """Returns the dtype name that the parameters of a link should have, and why, in a few words."""
    if isinstance(link, _MULTIPLIED) and (compute != "bfloat16" or isinstance(link, _IN_BFLOAT16)):
        return compute, "multiplied with activations"
    if isinstance(link, _NORMALIZATIONS):
        return "float32", "statistics"
    if is_multi_node(link):
        return "float32", f"statistics over {link.comm.size} processes"
    if isinstance(link, _MULTIPLIED):
        return "float32", "Chainer's function does not know bfloat16"
    if isinstance(link, _OTHERS):
        return "float32", "per channel"
    return "float32", UNKNOWN


UNKNOWN = "not a link that mixprec knows"


def own(link):
    """Returns ``{name: parameter}`` of a link itself."""
    return {name: link.__dict__[name] for name in sorted(link._params)}


def convert(link, dtype, state, in_float32):
    """Casts the parameters of a link, lays out filters, and gives float16 statistics float32.

    Args:
        link: a link.
        dtype: name of the dtype.
        state: its :class:`~mixprec.rewrite.conversion.LinkState`.
        in_float32: ids of parameters that stay in float32, as another link has them, too.

    Returns:
        list of texts, one for each parameter that 16 bits cannot hold.
    """
    lost = []
    for name, param in own(link).items():
        path = f"{state.name.rstrip('/')}/{name}"
        what = _cast(param, "float32" if id(param) in in_float32 else dtype, *state.before[name], path)
        if what is not None:
            lost.append(f'{path} becomes {what}: keep_float32=("{state.name}",)')
    order(link, state.conversion.policy.layout == "nhwc")
    _cast_statistics(link, state.before, np.float32)
    return lost


def order(link, nhwc):
    """Gives filters of a link the memory order (K, R, S, C), or that of their axes."""
    W = link.W if isinstance(link, _FILTERS) else None
    if W is not None and W.array is not None and W.ndim == 4 and W.dtype in STORAGE_DTYPES:
        if nhwc:
            lay_out(W)
        else:
            W.array = dense(W.array)


def half_statistics(link):
    """Returns ``{name: ("float16", None)}`` of the statistics of a link that are in float16, or will be."""
    names = [name for name in link._persistent if getattr(link.__dict__.get(name), "dtype", None) == np.float16]
    if getattr(link, _STATISTICS_DTYPE, None) == np.float16:
        names += [_STATISTICS_DTYPE, "avg_mean", "avg_var"]  # a batch normalization makes them when it gets its size
    return dict.fromkeys(names, ("float16", None))


def _cast_statistics(link, before, dtype):
    for name in before.keys() & {_STATISTICS_DTYPE, *link._persistent}:
        value = link.__dict__.get(name)
        if name == _STATISTICS_DTYPE:
            setattr(link, name, np.dtype(dtype))
        elif isinstance(value, chainer.get_array_types()):
            link.__dict__[name] = value.astype(dtype, copy=False)


def revert(link, before):
    """Gives the parameters of a link the dtypes, initializers and memory order from before, see :func:`convert`."""
    for name, param in own(link).items():
        if name in before:
            _cast(param, before[name][0], *before[name], path=None)
            param.initializer = before[name][1]
        if param.array is not None:
            param.array = dense(param.array)
    _cast_statistics(link, before, np.float16)


def _cast(param, dtype, dtype_before, initializer, path):
    """Casts a parameter, and returns what :func:`~mixprec.precision.lost_weights.lost` says of that."""
    if dtype_before not in _CASTABLE:  # integers, float64
        return None
    # Without a dtype of its own an initializer follows chainer.config.dtype, which may be another one by then.
    keep = dtype == dtype_before and (param.array is not None or getattr(initializer, "dtype", None) is not None)
    param.initializer = initializer if keep else Rounded(initializer, dtype, parameter=path)
    stored = arguments.storage_dtype("dtype", dtype)
    compute_in(param, stored)
    if param.array is None:
        param.cleargrad()  # or else it is initialized, too, in the dtype from before
    elif param.dtype != stored:
        param.cleargrad()
        if is_half(param.dtype):
            wide = exact(param)
        else:
            wide = param.array
            keep_master(param)
        param.array = wide if dtype == "float32" else rounded(wide, stored)
        return lost(wide, param.dtype) if is_half(param.dtype) and path is not None else None
    return None


def nbytes(links):
    """Returns the size in bytes of the parameters and statistics of links, each counted once."""
    arrays = {}
    for link in links:
        values = [param.array for param in own(link).values()] + [link.__dict__.get(name) for name in link._persistent]
        arrays.update({id(value): value for value in values if isinstance(value, chainer.get_array_types())})
    return sum(array.nbytes for array in arrays.values())


def dtype_name(param):
    """Returns the name of the dtype that a parameter has, or will have once it is initialized."""
    if param.array is None and getattr(param.initializer, "dtype", None) is None:
        return chainer.get_dtype(None, map_mixed16="float16").name
    return np.dtype(param.dtype).name
