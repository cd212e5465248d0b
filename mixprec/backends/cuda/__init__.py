"""The primitives on CUDA: plans of cuDNN, and own kernels for what it lacks.

Reading order. ``base``, ``kernels`` and ``candidates`` (the choice between implementations) serve all others.
``operations`` describes operations to cuDNN. ``convolution`` (with ``channels`` and ``stem``), ``linear``;
``batch_norm`` (with ``batch_norm_kernels``, ``dual_batch_norm``, ``batch_norm_pooling``), ``columns``; ``pooling``,
``layout``, ``elementwise``, ``embedding``, ``dropout``, ``loss``, ``local_response_norm``; ``curvature`` and
``recurrent``, by ``matrix_context``.
"""

import threading

from mixprec.backends.cuda.batch_norm import BatchNorms
from mixprec.backends.cuda.batch_norm_pooling import BatchNormPoolings
from mixprec.backends.cuda.candidates import WithoutCudnn
from mixprec.backends.cuda.channels import Channels
from mixprec.backends.cuda.convolution import Convolutions
from mixprec.backends.cuda.curvature import Curvatures
from mixprec.backends.cuda.dropout import Dropouts
from mixprec.backends.cuda.dual_batch_norm import DualBatchNorms
from mixprec.backends.cuda.elementwise import Additions, Biases, Mixtures
from mixprec.backends.cuda.embedding import Embeddings
from mixprec.backends.cuda.layout import Layouts, Sequences
from mixprec.backends.cuda.linear import Linears
from mixprec.backends.cuda.local_response_norm import LocalResponseNorms
from mixprec.backends.cuda.loss import Losses
from mixprec.backends.cuda.matrix_context import MatrixContext
from mixprec.backends.cuda.pooling import Poolings
from mixprec.backends.cuda.recurrent import Recurrents
from mixprec.backends.cuda.stem import Stems
from mixprec.backends.cudnn.context import CudnnContext
from mixprec.backends.launch import CupyLauncher
from mixprec.backends.primitives import Primitives
from mixprec.base.cudnn_library import CudnnMissing

_lock = threading.Lock()
_by_device = {}


class Cuda(
    Linears,  # as convolutions of one pixel
    Convolutions,  # and the ReLU; they pad by Channels, fold first layers by Stems, and are followed by BatchNorms
    BatchNorms,
    DualBatchNorms,
    BatchNormPoolings,
    Stems,
    Channels,
    Layouts,  # and casts
    Sequences,
    Additions,
    Biases,
    Poolings,
    LocalResponseNorms,
    Curvatures,
    Recurrents,
    Losses,
    Embeddings,
    Mixtures,
    Dropouts,
    Primitives,
):
    """All of :class:`~mixprec.backends.primitives.Primitives`, on one device and CuPy's current stream.

    Each base has the primitives of its name and is in the module of that name. Shared parts are in
    :class:`~mixprec.backends.cuda.base.Base` (launcher, memory),
    :class:`~mixprec.backends.cuda.candidates.Candidates` (the choice between implementations: ``_choose``, ``_cudnn``)
    and :class:`~mixprec.backends.cuda.columns.Columns` (sums over rows).

    Args:
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of the device.
        cudnn: :class:`~mixprec.backends.cudnn.context.CudnnContext` of the device.
        matrices: :class:`~mixprec.backends.cuda.matrix_context.MatrixContext` of the device.
    """


def primitives_of(device_id):
    """Returns the :class:`Cuda` of a device, always the same one.

    Without cuDNN it computes everything except convolutions and linear layers, which raise
    :class:`~mixprec.base.cudnn_library.CudnnMissing`. cuBLAS is loaded at its first use.
    """
    primitives = _by_device.get(device_id)
    if primitives is None:
        with _lock:
            if device_id not in _by_device:
                try:
                    cudnn = CudnnContext(device_id)
                except CudnnMissing as error:
                    cudnn = WithoutCudnn(str(error))
                _by_device[device_id] = Cuda(CupyLauncher(device_id), cudnn, MatrixContext(device_id))
        primitives = _by_device[device_id]
    return primitives
