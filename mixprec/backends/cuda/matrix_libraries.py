"""cuBLAS and cuSOLVER by ctypes: the few functions that K-FAC needs.

CuPy's own wrappers of both refuse while a stream captures a CUDA graph, and its linear algebra looks on the host
whether a factorization has succeeded.

Both libraries have matrices column by column. What lies in memory as C-contiguous (rows, columns) is to them the
transposed matrix (columns, rows); its leading dimension is the number of elements from one row in memory to the next.
"""

import ctypes
import functools
from ctypes import POINTER, c_float, c_int, c_longlong, c_size_t, c_void_p

import ml_dtypes
import numpy as np

PLAIN, TRANSPOSED = 0, 1  # cublasOperation_t
COMPUTE_32F, COMPUTE_32F_PEDANTIC, COMPUTE_32F_FAST_TF32 = 68, 69, 77  # cublasComputeType_t

_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 2, np.dtype(ml_dtypes.bfloat16): 14}  # cudaDataType
_FLOAT32 = _TYPES[np.dtype(np.float32)]
_DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
# CUBLAS_FILL_MODE_LOWER, of columns: in memory it is the triangle at the right and above.
_LOWER = 0
_MATRIX = (c_void_p, c_int, c_int, c_longlong)  # address, dtype, leading dimension, elements to the next matrix
_TRIANGLE = (c_void_p, c_int, c_int, c_void_p, c_int)  # handle, triangle, size, address, leading dimension

# All functions return a status.
_CUBLAS = {
    "cublasCreate_v2": (POINTER(c_void_p),),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasGemmStridedBatchedEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int),  # handle, operations, sizes
        *(POINTER(c_float), *_MATRIX, *_MATRIX, POINTER(c_float), *_MATRIX),
        *(c_int, c_int, c_int),  # number of matrices, type of computation, algorithm
    ),
}
_CUBLAS_STATUSES = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
}
_CUSOLVER = {
    "cusolverDnCreate": (POINTER(c_void_p),),
    "cusolverDnSetStream": (c_void_p, c_void_p),
    "cusolverDnSpotrf_bufferSize": (*_TRIANGLE, POINTER(c_int)),
    "cusolverDnSpotri_bufferSize": (*_TRIANGLE, POINTER(c_int)),
    "cusolverDnSpotrf": (*_TRIANGLE, c_void_p, c_int, c_void_p),
    "cusolverDnSpotri": (*_TRIANGLE, c_void_p, c_int, c_void_p),
}
_CUSOLVER_STATUSES = {
    1: "NOT_INITIALIZED",
    2: "ALLOC_FAILED",
    3: "INVALID_VALUE",
    4: "ARCH_MISMATCH",
    5: "MAPPING_ERROR",
    6: "EXECUTION_FAILED",
    7: "INTERNAL_ERROR",
    9: "NOT_SUPPORTED",
}


class LibraryMissing(RuntimeError):
    """cuBLAS or cuSOLVER is not installed: one line that says what to do."""


class _Library:
    """Functions of a library, which the first call loads, or raises :class:`LibraryMissing`.

    Args:
        name: of the library.
        signatures: tuples of types of arguments, by the names of functions.
        statuses: names of what functions return, but for 0.
        library: what :class:`ctypes.CDLL` gives for it; ``None`` for the one that is installed.
    """

    def __init__(self, name, signatures, statuses, library):
        self._name, self._signatures, self._statuses, self._library = name, signatures, statuses, library

    @functools.cached_property
    def _functions(self):
        library, functions = _load(self._name) if self._library is None else self._library, {}
        for name, arguments in self._signatures.items():
            function = functions[name] = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        return functions

    def _call(self, name, *arguments):
        status = self._functions[name](*arguments)
        if status:
            raise RuntimeError(f"{name}: {self._statuses.get(status, f'status {status}')}")


class Cublas(_Library):
    """Products of matrices.

    Args:
        library: what :class:`ctypes.CDLL` gives for cuBLAS, instead of the one that is installed.
    """

    def __init__(self, library=None):
        super().__init__("cublas", _CUBLAS, _CUBLAS_STATUSES, library)

    def create_handle(self):
        """Returns a new handle, an int, for the current device."""
        handle = c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(handle))
        return handle.value

    def set_stream(self, *, handle, stream):
        """Lets the work of a handle go to a stream; after that it has cuBLAS's own workspace."""
        self._call("cublasSetStream_v2", handle, stream)

    def set_workspace(self, handle, address, size):
        """Gives a handle temporary memory: its address, a multiple of 256, and bytes."""
        self._call("cublasSetWorkspace_v2", handle, address, size)

    def gemm(self, handle, operations, sizes, a, b, dtype, beta, c, count, compute):
        """``c = op(a) op(b) + beta c`` of ``count`` matrices each, in columns.

        Args:
            handle: from :meth:`create_handle`.
            operations: of a and b, each ``PLAIN`` or ``TRANSPOSED``.
            sizes: m, n, k: c is (m, n), op(a) is (m, k), op(b) is (k, n).
            a: ``(address, leading dimension, elements from one matrix to the next)``.
            b: likewise.
            dtype: of a and b, a storage dtype.
            beta: a number; with 0 nothing of c is read.
            c: as ``a``, in float32.
            count: number of matrices.
            compute: one of ``COMPUTE_32F...``.
        """
        (of_a, *layout_a), (of_b, *layout_b), (of_c, *layout_c) = a, b, c
        kind = _TYPES[dtype]
        self._call(
            "cublasGemmStridedBatchedEx",
            *(handle, *operations, *sizes),
            *(ctypes.byref(c_float(1)), of_a, kind, *layout_a, of_b, kind, *layout_b),
            *(ctypes.byref(c_float(beta)), of_c, _FLOAT32, *layout_c),
            *(count, compute, _DEFAULT_ALGORITHM),
        )


class Cusolver(_Library):
    """The inverse of a symmetric matrix by its Cholesky decomposition.

    Args:
        library: what :class:`ctypes.CDLL` gives for cuSOLVER, instead of the one that is installed.
    """

    def __init__(self, library=None):
        super().__init__("cusolver", _CUSOLVER, _CUSOLVER_STATUSES, library)

    def create_handle(self):
        """Returns a new handle, an int, for the current device."""
        handle = c_void_p()
        self._call("cusolverDnCreate", ctypes.byref(handle))
        return handle.value

    def set_stream(self, *, handle, stream):
        """Lets the work of a handle go to a stream."""
        self._call("cusolverDnSetStream", handle, stream)

    def workspace(self, handle, size, address):
        """Returns how many numbers of float32 :meth:`invert` needs as workspace for a matrix at an address."""
        found = []
        for name in ("cusolverDnSpotrf_bufferSize", "cusolverDnSpotri_bufferSize"):
            count = c_int()
            self._call(name, handle, _LOWER, size, address, size, ctypes.byref(count))
            found.append(count.value)
        return max(found)

    def invert(self, handle, size, address, workspace, count, info):
        """Replaces a triangle of a symmetric matrix of float32 by that of its inverse.

        Args:
            handle: from :meth:`create_handle`.
            size: number of rows.
            address: of the matrix. The triangle at the right and above, in memory, is read and written.
            workspace: address of temporary memory.
            count: numbers of float32 in it.
            info: address of two numbers of 32 bits on the device. Both are 0 if the matrix was positive definite.
        """
        triangle = handle, _LOWER, size, address, size
        self._call("cusolverDnSpotrf", *triangle, workspace, count, info)
        self._call("cusolverDnSpotri", *triangle, workspace, count, info + 4)


def _load(name):
    try:
        from cuda import pathfinder
    except ImportError:
        raise LibraryMissing(
            "cuda-pathfinder (the Python module cuda.pathfinder) is missing: pip install cuda-pathfinder"
        ) from None
    try:
        # That of a toolkit, a wheel, or one that the process has loaded, with what it loads itself.
        path = pathfinder.load_nvidia_dynamic_lib(name).abs_path
    except RuntimeError:
        raise LibraryMissing(
            f"lib{name}.so of CUDA is missing: pip install nvidia-{name}  (CUDA 12: nvidia-{name}-cu12)"
        ) from None
    return ctypes.CDLL(path)
