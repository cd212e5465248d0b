"""A stand-in for cuBLAS that computes with NumPy, called by addresses as C functions are.

Signatures are those of ``cublas_api.h`` of CUDA 13, written down apart from the ones that mixprec declares. Matrices
lie in memory column by column, and what the documentation asks of arguments is checked: a call that does not keep to it
returns INVALID_VALUE, and :attr:`FakeCublas.refused` says why.
"""

import ctypes
from ctypes import CFUNCTYPE, c_float, c_int, c_longlong, c_size_t, c_ubyte, c_void_p

import ml_dtypes
import numpy as np

_DTYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
_PLAIN, _TRANSPOSED = 0, 1
_COMPUTE = {68: "32F", 69: "32F_PEDANTIC", 77: "32F_FAST_TF32"}
_SIGNATURES = {
    "cublasCreate_v2": (c_void_p,),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasGemmStridedBatchedEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p),
        *(c_void_p, c_int, c_int, c_longlong),
        *(c_void_p, c_int, c_int, c_longlong),
        c_void_p,
        *(c_void_p, c_int, c_int, c_longlong),
        *(c_int, c_int, c_int),
    ),
}
_INVALID = 7


class FakeCublas:
    """The library; functions are attributes, as of ``ctypes.CDLL``.

    Args:
        device: :class:`~tests.stand_ins.cudnn_host.HostDevice`.
        do: what calls work, a function without arguments, now or when a graph is launched.

    Attributes:
        calls: sizes m, n and k, number of matrices, and type of the computation of each product.
        refused: why calls were refused.
    """

    def __init__(self, device, do=lambda work: work()):
        self._device, self.do = device, do
        self.calls, self.refused = [], []
        self._handles = {}  # dicts of what was set, by handle
        for name, signature in _SIGNATURES.items():
            # Arguments go through C, as numbers of these types, whatever types the caller has declared.
            setattr(self, name, CFUNCTYPE(c_int, *signature)(self._checked(name, getattr(self, f"_{name}"))))

    def _checked(self, name, function):
        def call(*arguments):
            try:
                function(*arguments)
            except Exception as error:
                self.refused.append(f"{name}: {error!r}")
                return _INVALID
            return 0

        return call

    def _cublasCreate_v2(self, found):
        assert not self._device.capturing(), "a handle is made in a capture"
        self._handles[len(self._handles) + 1001] = {"stream": 0, "workspace": None}
        c_void_p.from_address(found).value = len(self._handles) + 1000

    def _cublasSetStream_v2(self, handle, stream):
        self._handles[handle].update(stream=stream or 0, workspace=None)

    def _cublasSetWorkspace_v2(self, handle, address, size):
        assert address % 256 == 0 or size == 0, "a workspace begins at a multiple of 256"
        self._handles[handle]["workspace"] = address, size

    def _cublasGemmStridedBatchedEx(
        self, handle, of_a, of_b, m, n, k, alpha, a, a_type, lda, a_stride, b, b_type, ldb, b_stride, beta, c, c_type,
        ldc, c_stride, count, compute, algorithm,
    ):  # fmt: skip
        state = self._handles[handle]
        assert state["stream"] == self._device.stream(), "on another stream than the current one"
        assert state["workspace"] is not None, "a workspace of its own would be allocated in a capture"
        workspace, bytes_of_it = state["workspace"]
        assert {of_a, of_b} <= {_PLAIN, _TRANSPOSED}
        assert min(m, n, k, count) >= 0
        assert a_type == b_type, "both inputs have one type"
        assert c_type in (0, a_type), "a result is float32, or has the type of the inputs"
        assert compute in _COMPUTE
        assert algorithm == -1
        assert ldc >= max(1, m)
        assert count < 2 or c_stride >= n * ldc, "matrices of the result lie over each other"
        alpha, beta = (c_float.from_address(each).value for each in (alpha, beta))
        self.calls.append((m, n, k, count, _COMPUTE[compute]))

        def work():
            ctypes.memset(workspace, 0xFF, min(bytes_of_it, 4096))
            for i in range(count):
                first = _operand(a, _DTYPES[a_type], i * a_stride, lda, (m, k), of_a)
                second = _operand(b, _DTYPES[b_type], i * b_stride, ldb, (k, n), of_b)
                result = _columns(c, _DTYPES[c_type], i * c_stride, ldc, (m, n))
                with np.errstate(all="ignore"):
                    product = alpha * (first.astype(np.float32) @ second.astype(np.float32))
                    result[...] = product + beta * result.astype(np.float32) if beta else product

        self.do(work)


def _columns(address, dtype, offset, step, shape):
    """Returns the matrix in memory, as a view."""
    assert address % dtype.itemsize == 0, "not aligned"
    rows, columns = shape
    length = (columns - 1) * step + rows if min(shape) else 0
    place = address + offset * dtype.itemsize
    flat = np.frombuffer((c_ubyte * (length * dtype.itemsize)).from_address(place), dtype) if length else None
    if flat is None:
        return np.zeros(shape, dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, (dtype.itemsize, step * dtype.itemsize))


def _operand(address, dtype, offset, step, shape, operation):
    stored = shape if operation == _PLAIN else shape[::-1]
    assert step >= max(1, stored[0]), "the leading dimension is below the number of rows"
    matrix = _columns(address, dtype, offset, step, stored)
    return matrix if operation == _PLAIN else matrix.T
