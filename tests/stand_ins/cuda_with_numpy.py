"""The CUDA primitives on the host, called as those on NumPy are: with arrays of NumPy, which they return."""

import contextlib
import zlib

import numpy as np

from tests.stand_ins.cuda_on_host import HostCuda, engine, send
from tests.stand_ins.device_stand_in import DeviceArray


class CudaWithNumPy:
    """Copies arguments to the stand-in device and back, so that one test serves all backends.

    About half of the calls by own kernels have arrays that begin in the middle of 16 bytes.

    Args:
        by: engine of batch normalizations, ``"kernels"`` or ``"cudnn"``, which promises nothing for such addresses.
    """

    def __init__(self, by="kernels"):
        self._by, self._cuda = by, HostCuda()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments, **keywords):
            given = [value for value in (*arguments, *keywords.values()) if isinstance(value, np.ndarray)]
            misaligned = self._by == "kernels" and bool(given) and zlib.crc32(given[0].tobytes()) % 2 == 1
            copies = []  # pairs of an array and its copy
            arguments = [_sent(value, misaligned, copies) for value in arguments]
            keywords = {key: _sent(value, misaligned, copies) for key, value in keywords.items()}
            with engine(self._by) if name.startswith("batch_norm") else contextlib.nullcontext():
                found = getattr(self._cuda, name)(*arguments, **keywords)
            for array, copy in copies:
                if copy.tobytes() != array.tobytes():  # what is moved in place, or added to
                    array[...] = copy
            return _received(found, copies)

        return call


def _sent(value, misaligned, copies):
    if isinstance(value, tuple):
        parts = [_sent(part, misaligned, copies) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if not isinstance(value, np.ndarray | np.generic):
        return value
    copy = send(value, misaligned and value.dtype.itemsize > 1)
    copies.append((value, copy))
    return copy


def _received(found, copies):
    if isinstance(found, tuple):
        parts = [_received(part, copies) for part in found]
        return type(found)(*parts) if hasattr(found, "_fields") else tuple(parts)
    if not isinstance(found, DeviceArray):
        return found
    assert found.flags.c_contiguous
    same = [array for array, copy in copies if copy is found]
    return same[0] if same else np.asarray(found)
