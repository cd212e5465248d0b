"""The primitives on NumPy's arrays by :mod:`mixprec.native`: in one pass, on all threads.

What it does not have, :mod:`mixprec.backends.cpu` computes.
"""

from mixprec.backends.cpu import Cpu
from mixprec.backends.native.native_batch_norm import NativeBatchNorms
from mixprec.backends.native.native_convolution import NativeConvolutions
from mixprec.backends.native.native_elementwise import NativeElementwise
from mixprec.backends.native.native_pooling import NativePoolings


class Native(NativeConvolutions, NativeBatchNorms, NativeElementwise, NativePoolings, Cpu):
    """All of :class:`~mixprec.backends.primitives.Primitives`."""


PRIMITIVES = Native()
