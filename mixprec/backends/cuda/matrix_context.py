"""Products of matrices on one device, by cuBLAS, on CuPy's current stream.

A CUDA graph may capture them after an eager product on the same stream, which creates handle and workspace.
"""

import numpy as np

from mixprec.backends.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_32F_PEDANTIC, PLAIN, TRANSPOSED, Cublas
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.cupy_device import CupyDevice
from mixprec.backends.cudnn.handles import Handles
from mixprec.backends.cudnn.workspace import Workspaces
from mixprec.backends.device_log import record

_WORKSPACE = 32 << 20  # bytes: as many as cuBLAS takes by itself on an H100
_FLOAT = np.dtype(np.float32)


class MatrixContext:
    """cuBLAS on one device; it is loaded at its first use.

    Matrices are row by row: ``(address, step, stride)``, the numbers of elements from one row to the next, and from one
    matrix to the next.

    Args:
        device_id: number of the CUDA device.
        cublas: :class:`~mixprec.backends.cublas.Cublas`, instead of the installed one.
        device: object like :class:`~mixprec.backends.cudnn.cupy_device.CupyDevice`, instead of one for ``device_id``.
    """

    def __init__(self, device_id, *, cublas=None, device=None):
        self._device = CupyDevice(device_id) if device is None else device
        self._cublas = Cublas() if cublas is None else cublas
        self._handles = Handles(self._cublas, self._device, "cuBLAS")
        self._workspaces = Workspaces(self._device, "cuBLAS")

    def add_moments(self, rows, dtype, count, out, size, groups):
        """Adds the sum of ``r r^T`` over rows r to matrices.

        Args:
            rows: the layout of them, of each group a matrix (count, size).
            dtype: of the rows, a storage dtype. float32 may be rounded to TF32 if the settings of cuDNN allow it.
            count: number of rows of each group.
            out: address of (groups, size, size) float32, C-contiguous.
            size: number of elements of a row.
            groups: number of groups.
        """
        layout = out, size, size * size
        sizes, dtypes = (size, size, count), (dtype, _FLOAT)
        self._multiply(rows, rows, layout, sizes, groups, (TRANSPOSED, PLAIN), 1, 1, dtypes, _compute(dtype))

    def multiply(self, a, b, c, sizes, count, *, transposed=False, alpha=1, beta=0):
        """``c = alpha a b + beta c`` for matrices of float32.

        They are never rounded to TF32, as inverses have large and small elements.

        Args:
            a: layout of matrices (rows, inner).
            b: layout of matrices (inner, columns).
            c: layout of matrices (rows, columns).
            sizes: (rows, columns, inner).
            count: number of matrices.
            transposed: whether ``a`` lies in memory as (inner, rows).
            alpha: a number.
            beta: a number; with 0 nothing of ``c`` is read.
        """
        operations, dtypes = (TRANSPOSED if transposed else PLAIN, PLAIN), (_FLOAT, _FLOAT)
        self._multiply(a, b, c, sizes, count, operations, alpha, beta, dtypes, _compute(None))

    def product(self, a, b, c, sizes, dtypes, *, transposed=(False, False), beta=0):
        """``c = a b + beta c`` for a matrix each, of a layer; float32 may be rounded to TF32 as in convolutions.

        Args:
            a: ``(address, step)`` of a matrix (rows, inner).
            b: the same of a matrix (inner, columns).
            c: the same of a matrix (rows, columns).
            sizes: (rows, columns, inner).
            dtypes: of ``a`` and ``b``, a storage dtype; and of ``c``, the same or float32, rounded once.
            transposed: for ``a`` and ``b``, whether the matrix lies in memory as its transpose.
            beta: a number; with 0 nothing of ``c`` is read.
        """
        operations = tuple(TRANSPOSED if each else PLAIN for each in transposed)
        layouts = [(*layout, 0) for layout in (a, b, c)]
        self._multiply(*layouts, sizes, 1, operations, 1, beta, dtypes, _compute(dtypes[0]))

    def _multiply(self, a, b, c, sizes, count, operations, alpha, beta, dtypes, compute):
        if not (count and all(sizes)):
            return  # nothing is added; with a beta of 0 callers see to that themselves
        record("blas", "product", *a, *b, *c, *sizes, count, *operations, alpha, beta, compute)
        rows, columns, inner = sizes
        with self._device.current():
            stream = self._device.stream()
            handle = self._handles.on(stream)
            # Its own workspace would be allocated in a capture, and a change of the stream has restored it.
            self._cublas.set_workspace(handle, self._workspaces.address(stream, _WORKSPACE), _WORKSPACE)
            # In column order all of these are transposed: the product is b times a.
            operations, sizes = operations[::-1], (columns, rows, inner)
            self._cublas.gemm(handle, operations, sizes, b, a, dtypes, alpha, beta, c, count, compute)


def _compute(dtype):
    """Returns the type of a computation with inputs of a dtype: the settings of convolutions hold for them, too."""
    now = settings.current()
    if not now.tensor_cores:
        return COMPUTE_32F_PEDANTIC
    return COMPUTE_32F_FAST_TF32 if dtype == _FLOAT and now.tf32 else COMPUTE_32F
