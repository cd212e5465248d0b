"""cuBLAS by ctypes: the few functions that products of matrices need.

CuPy's own wrapper refuses to work while a stream captures a CUDA graph, though cuBLAS itself does not. cuSOLVER is not
used: its documentation does not say that it can be captured.

cuBLAS stores matrices by columns. A C-contiguous matrix (rows, columns) is a transposed matrix (columns, rows) for it;
its leading dimension is the number of elements from one row in memory to the next.
"""

import ctypes
import functools
from ctypes import POINTER, c_float, c_int, c_longlong, c_size_t, c_void_p

import ml_dtypes
import numpy as np

from mixprec.base.installation import cuda_hint

PLAIN, TRANSPOSED = 0, 1  # cublasOperation_t
COMPUTE_32F, COMPUTE_32F_PEDANTIC, COMPUTE_32F_FAST_TF32 = 68, 69, 77  # cublasComputeType_t

_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 2, np.dtype(ml_dtypes.bfloat16): 14}  # cudaDataType
_DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
_MATRIX = (c_void_p, c_int, c_int, c_longlong)  # address, dtype, leading dimension, elements to the next matrix
# All of them return a status.
_SIGNATURES = {
    "cublasCreate_v2": (POINTER(c_void_p),),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasGemmStridedBatchedEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int),  # handle, operations, sizes
        *(POINTER(c_float), *_MATRIX, *_MATRIX, POINTER(c_float), *_MATRIX),
        *(c_int, c_int, c_int),  # number of matrices, type of computation, algorithm
    ),
}
_STATUSES = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
}


class CublasMissing(RuntimeError):
    """cuBLAS is not installed: one line with instructions."""


class Cublas:
    """Products of matrices. The first call loads the library, or raises :class:`CublasMissing`.

    Args:
        library: :class:`ctypes.CDLL` of cuBLAS, instead of the installed one.
    """

    def __init__(self, library=None):
        self._library = library

    @functools.cached_property
    def _functions(self):
        library, functions = _load() if self._library is None else self._library, {}
        for name, arguments in _SIGNATURES.items():
            function = functions[name] = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        return functions

    def create_handle(self):
        """Returns a new handle, an int, for the current device."""
        handle = c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(handle))
        return handle.value

    def set_stream(self, *, handle, stream):
        """Sends the work of a handle to a stream; this resets it to cuBLAS's own workspace."""
        self._call("cublasSetStream_v2", handle, stream)

    def set_workspace(self, handle, address, size):
        """Gives a handle temporary memory: its address, a multiple of 256, and bytes."""
        self._call("cublasSetWorkspace_v2", handle, address, size)

    def gemm(self, handle, operations, sizes, a, b, dtypes, alpha, beta, c, count, compute):
        """``c = alpha op(a) op(b) + beta c`` of ``count`` matrices each, in columns.

        Args:
            handle: from :meth:`create_handle`.
            operations: of a and b, each ``PLAIN`` or ``TRANSPOSED``.
            sizes: m, n, k: c is (m, n), op(a) is (m, k), op(b) is (k, n).
            a: ``(address, leading dimension, elements from one matrix to the next)``.
            b: as ``a``.
            dtypes: of a and b, a storage dtype; and of c, the same or float32.
            alpha: a number.
            beta: a number; with 0 nothing of c is read.
            c: as ``a``.
            count: number of matrices.
            compute: one of ``COMPUTE_32F...``.
        """
        (of_a, *layout_a), (of_b, *layout_b), (of_c, *layout_c) = a, b, c
        kind, kind_of_c = map(_TYPES.__getitem__, dtypes)
        self._call(
            "cublasGemmStridedBatchedEx",
            *(handle, *operations, *sizes),
            *(ctypes.byref(c_float(alpha)), of_a, kind, *layout_a, of_b, kind, *layout_b),
            *(ctypes.byref(c_float(beta)), of_c, kind_of_c, *layout_c),
            *(count, compute, _DEFAULT_ALGORITHM),
        )

    def _call(self, name, *arguments):
        status = self._functions[name](*arguments)
        if status:
            raise RuntimeError(f"{name}: {_STATUSES.get(status, f'status {status}')}")


def _load():
    try:
        from cuda import pathfinder
    except ImportError:
        raise CublasMissing(f"cuda-pathfinder (the Python module cuda.pathfinder) is missing: {cuda_hint()}") from None
    try:
        # The library of a toolkit, of a wheel, or loaded by the process, with its dependencies.
        path = pathfinder.load_nvidia_dynamic_lib("cublas").abs_path
    except RuntimeError:
        raise CublasMissing(f"libcublas.so of CUDA is missing: {cuda_hint()}") from None
    return ctypes.CDLL(path)
