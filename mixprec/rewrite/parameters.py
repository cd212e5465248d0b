"""Dtypes and memory order of the parameters and statistics of a link: conversion, and back.

``convert`` and ``revert`` call it for each link, before and after training; :func:`order` runs on a new device, too.
"""

import sys

import chainer
import chainer.links as L
import numpy as np
from chainer.links.rnn.n_step_rnn import NStepRNNBase

from mixprec.backends.joint_batch import JointBatch, NcclJointBatch
from mixprec.base import arguments
from mixprec.base.dtypes import STORAGE_DTYPES, is_half
from mixprec.functions.node import dense
from mixprec.precision.lost_weights import lost
from mixprec.precision.master_arrays import OWNER, keep_master
from mixprec.precision.storage import Rounded, lay_out
from mixprec.precision.weight_copies import compute_in, exact, rounded

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
# Chainer's other functions do not support bfloat16.
_IN_BFLOAT16 = (*_FILTERS, L.EmbedID, L.Linear)

_STATISTICS_DTYPE = "_highprec_dtype"  # attribute of Chainer's batch normalizations

_CASTABLE = ("float16", "bfloat16", "float32")


def layers(model):
    """Returns the ids of the links in which Chainer's ``NStepLSTM`` and its like keep the weights of their layers."""
    return {id(layer) for link in model.links() if isinstance(link, NStepRNNBase) for layer in link.children()}


def dtype_of(link, compute, layer=False):
    """Returns the dtype name that the parameters of a link should have, and why, in a few words.

    Args:
        link: a link.
        compute: name of the dtype of the model.
        layer: whether the link is one of :func:`layers`.
    """
    is_multiplied = layer or isinstance(link, _MULTIPLIED)
    if is_multiplied and (compute != "bfloat16" or layer or isinstance(link, _IN_BFLOAT16)):
        return compute, "multiplied with activations"
    if isinstance(link, _NORMALIZATIONS):
        return "float32", "statistics"
    if is_multi_node(link):
        return "float32", f"statistics over {link.comm.size} processes"
    if is_multiplied:
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
        state: its :class:`~mixprec.rewrite.convert.LinkState`.
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
    """Gives filters of a link the memory order (K, R, S, C), or the order of their axes."""
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
    # Without a dtype of its own an initializer follows chainer.config.dtype, which may have changed by then.
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


_TEXT = (
    "%s have the same weights: if one is a target network or an average of another, %s rounds its small steps away: "
    "name it in keep_float32, or make it by copy.deepcopy after mixprec.convert"
)


def twins(model):
    """Returns a text for each set of parts of a converted model with the same weights, if it is to be trained.

    The first row of each weight is read.

    Args:
        model: a link.
    """
    params = list(model.namedparams(include_uninit=False))
    if not any(OWNER in param.__dict__ for _, param in params):
        return []
    host, seen, found = chainer.get_device("@numpy"), {}, {}
    for name, param in params:
        if param.ndim < 2 or not param.size or not is_half(param.dtype):
            continue
        row = host.send(param.array[0])
        other, of = seen.setdefault((param.shape, row.tobytes()), (name, param))
        if of is not param and (row != row.flat[0]).any():
            first, part = _parts(other, name)
            found.setdefault((first, param.dtype.name), {})[part] = True
    return [
        _TEXT % (f"{', '.join([first, *list(parts)[:-1]])} and {[*parts][-1]}", dtype)
        for (first, dtype), parts in found.items()
    ]


def _parts(name, other):
    """Returns the names without their common ends, ``/k`` and ``/q`` for ``/k/W`` and ``/q/W``."""
    names, others = name.split("/"), other.split("/")
    while names[-1] == others[-1]:
        names.pop()
        others.pop()
    return "/".join(names) or "/", "/".join(others) or "/"


def ranks_of(node, x, name):
    """Returns the processes over whose batches a batch normalization computes its statistics.

    Args:
        node: its function node.
        x: its input.
        name: its name, for messages.

    Returns:
        :class:`~mixprec.backends.joint_batch.JointBatch`, or ``None`` if it is not ChainerMN's, or sends CuPy arrays
        by MPI.
    """
    selector = node._impl_selector
    if not _is_of(selector, "chainermn.functions.batch_normalization", "MultiNodeBNImplSelector"):
        return None
    if chainer.backend.get_array_module(x) is np:
        return JointBatch(selector.comm, name)
    return NcclJointBatch(selector.comm, name) if selector.communication_backend_name == "nccl" else None


def is_multi_node(link):
    """Whether a link is ``chainermn.links.MultiNodeBatchNormalization``."""
    return _is_of(link, "chainermn.links.batch_normalization", "MultiNodeBatchNormalization")


def _is_of(value, module, name):
    module = sys.modules.get(module)
    return module is not None and isinstance(value, getattr(module, name))
