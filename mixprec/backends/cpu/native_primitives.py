"""The primitives on NumPy's arrays by :mod:`mixprec.native`: in one pass, on all threads.

:mod:`mixprec.backends.cpu` computes the rest.
"""

from mixprec.backends.cpu import Cpu
from mixprec.backends.cpu.native_batch_norm import NativeBatchNorms
from mixprec.backends.cpu.native_convolution import NativeConvolutions
from mixprec.backends.cpu.native_elementwise import NativeElementwise
from mixprec.backends.cpu.native_pooling import NativePoolings


class Native(NativeConvolutions, NativeBatchNorms, NativeElementwise, NativePoolings, Cpu):
    """All of :class:`~mixprec.backends.primitives.Primitives`."""


PRIMITIVES = Native()
