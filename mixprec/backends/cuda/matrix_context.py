"""Products and inverses of matrices on one device, by cuBLAS and cuSOLVER, on CuPy's current stream.

All arrays are C-contiguous, as :mod:`~mixprec.backends.cuda.matrix_libraries` has it in columns. A CUDA graph may
capture everything here, once it has been called eagerly on the same stream: handles and workspaces are there then.
"""

import numpy as np

from mixprec.backends.cuda.matrix_libraries import (
    COMPUTE_32F,
    COMPUTE_32F_FAST_TF32,
    COMPUTE_32F_PEDANTIC,
    PLAIN,
    TRANSPOSED,
    Cublas,
    Cusolver,
)
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.cupy_device import CupyDevice
from mixprec.backends.cudnn.handles import Handles
from mixprec.backends.cudnn.workspace import Workspaces
from mixprec.backends.device_log import record

_WORKSPACE = 32 << 20  # bytes for cuBLAS: as many as it takes by itself on an H100
_FLOAT = np.dtype(np.float32)


class MatrixContext:
    """The libraries of one device; each is loaded at its first use.

    Args:
        device_id: number of the CUDA device.
        cublas: :class:`~mixprec.backends.cuda.matrix_libraries.Cublas`, instead of what is installed.
        cusolver: :class:`~mixprec.backends.cuda.matrix_libraries.Cusolver`, instead of what is installed.
        device: object like :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`, instead of one for ``device_id``.
    """

    def __init__(self, device_id, *, cublas=None, cusolver=None, device=None):
        self._device = CupyDevice(device_id) if device is None else device
        self._cublas = Cublas() if cublas is None else cublas
        self._cusolver = Cusolver() if cusolver is None else cusolver
        self._cublas_handles = Handles(self._cublas, self._device, "cuBLAS")
        self._cusolver_handles = Handles(self._cusolver, self._device, "cuSOLVER")
        self._workspaces = Workspaces(self._device, "cuBLAS and cuSOLVER")
        self._sizes = {}  # numbers in the workspace of an inverse, by number of rows

    def add_moments(self, address, dtype, rows, step, groups, size, stride, out):
        """Adds to ``out`` the sum of ``r r^T`` over rows r.

        Args:
            address: of the first row of the first group.
            dtype: of the rows, a storage dtype.
            rows: number of rows of each group.
            step: elements from one row to the next.
            groups: number of groups.
            size: number of elements of a row.
            stride: elements from a group to the next one.
            out: address of (groups, size, size) float32.
        """
        matrix = address, step, stride
        # In columns these are (size, rows), times the same transposed. The result is symmetric.
        self._multiply(
            (PLAIN, TRANSPOSED), (size, size, rows), matrix, matrix, dtype, 1, (out, size, size * size), groups
        )

    def multiply(self, a, b, out, groups, rows, columns, inner):
        """Writes the products of float32 matrices a (groups, rows, inner) and b (groups, inner, columns) to ``out``.

        All three are addresses. In columns it is the product of the transposed matrices: of b, then a. Nothing is
        rounded to TF32, whatever the settings say: inverses have large and small elements.
        """
        self._multiply(
            (PLAIN, PLAIN),
            (columns, rows, inner),
            (b, columns, inner * columns),
            (a, inner, rows * inner),
            _FLOAT,
            0,
            (out, columns, rows * columns),
            groups,
            exact=True,
        )

    def invert(self, address, groups, size, info):
        """Replaces the triangles at the right and above of symmetric matrices by those of their inverses.

        Args:
            address: of (groups, size, size) float32.
            groups: number of matrices.
            size: number of rows of each.
            info: address of (groups, 2) int32, which is not 0 after that where a matrix was not positive definite.
        """
        record("blas", "inverses", address, groups, size, info)
        with self._device.current():
            stream = self._device.stream()
            handle = self._cusolver_handles.on(stream)
            count = self._sizes.get(size)
            if count is None:
                count = self._sizes[size] = self._cusolver.workspace(handle, size, address)
            workspace = self._workspaces.address(stream, count * _FLOAT.itemsize)
            for group in range(groups):
                matrix = address + group * size * size * _FLOAT.itemsize
                self._cusolver.invert(handle, size, matrix, workspace, count, info + group * 8)

    def _multiply(self, operations, sizes, a, b, dtype, beta, c, count, exact=False):
        if not (count and sizes[0] and sizes[1] and (sizes[2] or not beta)):
            return
        compute = _compute(dtype, exact)
        record("blas", "product", *operations, *sizes, *a, *b, beta, *c, count, compute)
        with self._device.current():
            stream = self._device.stream()
            handle = self._cublas_handles.on(stream)
            # Its own one would be allocated in a capture, and a change of the stream has brought that back.
            self._cublas.set_workspace(handle, self._workspaces.address(stream, _WORKSPACE), _WORKSPACE)
            self._cublas.gemm(handle, operations, sizes, a, b, dtype, beta, c, count, compute)


def _compute(dtype, exact):
    """Returns the type of a computation: the settings of cuDNN's convolutions hold for products, too."""
    now = settings.current()
    if not now.tensor_cores:
        return COMPUTE_32F_PEDANTIC
    return COMPUTE_32F_FAST_TF32 if dtype == _FLOAT and now.tf32 and not exact else COMPUTE_32F
