"""A stand-in for a CUDA device that computes nothing and records what it is asked for.

Arrays are of NumPy, with anything in them: they know address, shape and dtype. The primitives of such an array are
those of :mod:`mixprec.backends.cuda`, with a launcher, a cuDNN and matrices that only record, in
:mod:`mixprec.backends.device_log`. What NumPy's functions do to arrays, where CuPy would launch a kernel, is recorded
too. Outside of ``Graphs.on_stream()`` a plain ``np.asarray`` of an array of the device is not: it gives one of the
host.
"""

import inspect

import numpy as np

from benchmarks.null_device.arrays import Array
from benchmarks.null_device.null_launcher import Address, CudnnContext, Launcher, Matrices
from benchmarks.null_device.null_memory import Memory
from benchmarks.null_device.null_nccl import Nccl
from benchmarks.null_device.primitive_calls import Call, Spec, calls, named
from benchmarks.null_device.recorded_graphs import Graph, Graphs
from mixprec import backends
from mixprec.backends.primitives import Primitives
from mixprec.graph_capture import origin
from mixprec.master_arrays import MASTER

__all__ = [
    "Address",
    "Array",
    "Call",
    "CudnnContext",
    "Graph",
    "Graphs",
    "Launcher",
    "Matrices",
    "Spec",
    "array",
    "calls",
    "install",
    "send",
]


def array(value):
    """Returns a copy of an array of NumPy on the device; that is an upload."""
    value = np.asarray(value)
    result = Array.memory.new(value.shape, value.dtype, np.empty_like(value).strides).view(Array)
    Array.memory.upload("array", result.ctypes.data, value.nbytes)
    result.view(np.ndarray)[...] = value
    return result


def send(link, array_type=None):
    """Moves parameters and persistent arrays of a link to the device, in place of ``to_device``; returns the link.

    Args:
        link: any :class:`chainer.Link` on NumPy.
        array_type: what its arrays become, a subclass of NumPy's; ``None`` for :class:`Array`.
    """
    array_type = array_type or Array
    for part in link.links():
        for name in part._persistent:
            if isinstance(part.__dict__[name], np.ndarray):
                part.__dict__[name] = part.__dict__[name].view(array_type)
    for param in link.params(include_uninit=False):
        param.array = param.array.view(array_type)
        param.cleargrad()
        if MASTER in param.__dict__:  # of an optimizer that was set up before
            owner, master = param.__dict__[MASTER]
            param.__dict__[MASTER] = owner, master.view(array_type)
    return link


def install():
    """Makes :func:`mixprec.backends.primitives_of` know such arrays; the device has nothing in its memory yet."""
    from mixprec.backends import cuda

    Array.memory = Memory()
    primitives = cuda.Cuda(Launcher(), CudnnContext(), Matrices())
    for name, contract in vars(Primitives).items():
        if inspect.isfunction(contract):
            setattr(primitives, name, named(name, getattr(primitives, name)))
    primitives.graphs = Graphs(primitives.launcher)
    nccl = Nccl()
    primitives.nccl_of = lambda communicator: nccl
    backends.register(Array, primitives)
    origin.LIBRARIES.add(__name__)
