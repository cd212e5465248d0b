"""A stand-in for a CUDA device that computes nothing and records what it is asked for.

Arrays are of NumPy, with anything in them: they know address, shape and dtype. The primitives of such an array are
those of :mod:`mixprec.backends.cuda`, with a launcher, a cuDNN and matrices that only record, in
:mod:`mixprec.backends.device_log`. What NumPy's functions do to arrays, where CuPy would launch a kernel, is recorded
too. Outside of ``Graphs.on_stream()`` a plain ``np.asarray`` of an array of the device is not: it gives one of the
host.
"""

import numpy as np

from benchmarks.recording_device.arrays import Array
from benchmarks.recording_device.graphs import Graph, Graphs
from benchmarks.recording_device.launcher import CudnnContext, Launcher, Matrices
from benchmarks.recording_device.memory import Memory
from benchmarks.recording_device.nccl import Nccl
from mixprec import backends
from mixprec.backends.device_log import asked_by
from mixprec.backends.primitives import NAMES
from mixprec.graph_capture import origin
from mixprec.precision.master_arrays import MASTER

__all__ = ["CudnnContext", "Graph", "Graphs", "Launcher", "array", "install", "send"]


def array(value):
    """Returns a copy of an array of NumPy on the device; that is an upload."""
    value = np.asarray(value)
    result = Array.memory.new(value.shape, value.dtype, np.empty_like(value).strides).view(Array)
    Array.memory.upload("array", result.ctypes.data, value.nbytes)
    result.view(np.ndarray)[...] = value
    return result


def _on_device(value):
    return value.view(Array)


def send(link, move=_on_device):
    """Moves parameters and persistent arrays of a link to the device, in place of ``to_device``; returns the link.

    Args:
        link: any :class:`chainer.Link` on NumPy.
        move: what makes an array of the device of one of NumPy.
    """
    for part in link.links():
        for name in part._persistent:
            if isinstance(part.__dict__[name], np.ndarray):
                part.__dict__[name] = move(part.__dict__[name])
    for param in link.params(include_uninit=False):
        param.array = move(param.array)
        param.cleargrad()
        if MASTER in param.__dict__:  # of an optimizer that was set up before
            owner, master = param.__dict__[MASTER]
            param.__dict__[MASTER] = owner, move(master)
    return link


def install():
    """Makes :func:`mixprec.backends.primitives_of` know such arrays; the device has nothing in its memory yet."""
    from mixprec.backends import cuda

    Array.memory = Memory()
    primitives = cuda.Cuda(Launcher(), CudnnContext(), Matrices())
    for name in NAMES:
        setattr(primitives, name, asked_by(name)(getattr(primitives, name)))
    primitives.graphs = Graphs(primitives.launcher)
    nccl = Nccl()
    primitives.nccl_of = lambda communicator: nccl
    backends.register(Array, primitives)
    origin.LIBRARIES.add(__package__)
