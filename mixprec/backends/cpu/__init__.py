"""The primitives on NumPy: storage in the dtype of the arrays, arithmetic in float32, one rounding.

bfloat16 is a dtype of ml_dtypes, which NumPy supports. Reading order. ``blocks`` (casts, and the walk over blocks of an
array), then a file for each group: ``convolution``, ``batch_norm``, ``matrices`` (linear layers and losses),
``embedding``, ``recurrent``, ``sequences``, ``elementwise``, ``pooling``, ``local_response_norm``, ``dropout``,
``second_moments``. If the library of :mod:`mixprec.native` is there, ``native_primitives`` replaces some of these by
``native_convolution``, ``native_batch_norm``, ``native_elementwise`` and ``native_pooling``.
"""

from mixprec.backends.cpu.batch_norm import BatchNorms
from mixprec.backends.cpu.blocks import Casts
from mixprec.backends.cpu.convolution import Convolutions
from mixprec.backends.cpu.dropout import Dropouts
from mixprec.backends.cpu.elementwise import Elementwise
from mixprec.backends.cpu.embedding import Embeddings
from mixprec.backends.cpu.local_response_norm import LocalResponseNorms
from mixprec.backends.cpu.matrices import Linears, Losses
from mixprec.backends.cpu.pooling import Poolings
from mixprec.backends.cpu.recurrent import Recurrents
from mixprec.backends.cpu.second_moments import SecondMoments
from mixprec.backends.cpu.sequences import Sequences
from mixprec.backends.primitives import Primitives


class Cpu(
    Convolutions,
    BatchNorms,
    Elementwise,
    Poolings,
    LocalResponseNorms,
    SecondMoments,
    Linears,
    Losses,
    Embeddings,
    Recurrents,
    Sequences,
    Dropouts,
    Casts,
    Primitives,
):
    """All of :class:`~mixprec.backends.primitives.Primitives`."""


PRIMITIVES = Cpu()
