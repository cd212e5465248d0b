"""Devices: the same primitives on NumPy and on CUDA, and the launcher of kernels.

:func:`primitives_of` finds the device of an array for the functions of mixprec, the batched update and the bridge.
Reading order. ``primitives`` declares all arithmetic, with ``geometry``, ``recurrence`` and ``composed``; ``cpu``,
``cuda`` (with ``cudnn``) and ``nchw`` (for plain Chainer) implement it. ``launch`` compiles and launches the files in
``kernels``, ``stored`` caches them, ``cublas`` multiplies, ``wgrad_stream`` runs beside the main stream, ``device_log``
records. Several processes: ``nccl``, ``mpi_duplicates``, ``joint_batch``. Offloading: ``copies``, ``copy_interface``,
``pinned_copies``, ``file_copies``. Small parts: ``memory`` (order of axes), ``transfers`` (reads by the host),
``dropout_state``, ``capture_error``.
"""

import functools

import chainer
import numpy as np

from mixprec.native.native_library import library

_OTHERS = {}  # primitives by the type of array, for arrays of neither NumPy nor CuPy


def primitives_of(array):
    """Returns the :class:`~mixprec.backends.primitives.Primitives` for the device of an array.

    Raises:
        TypeError: it is not an array of NumPy or CuPy.
    """
    if type(array) in _OTHERS:
        return _OTHERS[type(array)]
    if isinstance(array, np.ndarray):
        return _on_numpy()
    device = chainer.backend.get_device_from_array(array)
    if device.xp.__name__ == "cupy":
        from mixprec.backends import cuda

        return cuda.primitives_of(device.device.id)
    raise TypeError(f"mixprec computes with arrays of NumPy and CuPy; found {type(array).__module__}")


@functools.cache
def _on_numpy():
    if library() is None:
        from mixprec.backends import cpu

        return cpu.PRIMITIVES
    from mixprec.backends.cpu import native_primitives as native

    return native.PRIMITIVES


def launcher_of(array):
    """Returns the launcher of kernels for the device of an array, or ``None`` if NumPy computes with it."""
    if type(array) in _OTHERS:
        return _OTHERS[type(array)].launcher
    device = chainer.backend.get_device_from_array(array)
    if device.xp.__name__ != "cupy":
        return None
    from mixprec.backends.launch import CupyLauncher

    return CupyLauncher(device.device.id)


def is_of_numpy(array):
    """Whether NumPy computes with an array: an array of NumPy that is not registered for other primitives."""
    return isinstance(array, np.ndarray) and type(array) not in _OTHERS


def register(array_type, primitives):
    """Makes :func:`primitives_of` return ``primitives`` for arrays of exactly this type.

    Their attribute ``launcher`` is the result of :func:`launcher_of`, ``graphs`` the result of
    :func:`mixprec.graph_capture.cuda_graphs.graphs_of`, ``nccl_of`` replaces :func:`mixprec.backends.nccl.nccl_of` of a
    communicator, and ``copies`` is called for :func:`mixprec.backends.copies.copies_for`.
    """
    _OTHERS[array_type] = primitives


def registered(array):
    """Returns the primitives that were registered for the type of an array, or ``None``."""
    return _OTHERS.get(type(array))
