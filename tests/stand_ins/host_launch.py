"""In place of ``CupyLauncher``: the same CUDA source on the host, compiled by g++, on stand-ins for device arrays."""

import ctypes
import pathlib
import re

import numpy as np

from benchmarks.recording_device.launcher import ArrayLauncher
from tests.stand_ins import compiled
from tests.stand_ins.device_stand_in import DeviceArray

_HEADER = pathlib.Path(__file__).with_name("host_cuda.h")
_SHARED = re.compile(r"__shared__ ([^;]*?(\w+)(?:\[[^;]*\])?);")


class HostLauncher(ArrayLauncher):
    """Small blocks, so that small parameters have several; counts launches and uploads.

    Args:
        flags: for g++ beside the usual ones.
    """

    array_type = DeviceArray
    threads = 64
    chunk = 1024

    def __init__(self, flags=("-ffp-contract=off",)):
        compiled.need_compiler()
        self._flags = flags
        self.launches = []
        self.uploads = []
        self.counted = np.zeros(4096, np.uint32)

    def compile(self, source, names):
        wrappers = (
            f'extern "C" const char* run_{name}(unsigned blocks, const host::Value* values) '
            f"{{ return host::call({name}, blocks, THREADS, values); }}"
            for name in names
        )
        poisoned = _SHARED.sub(r"__shared__ \1; host::poison(&\2, sizeof(\2));", source)
        loaded = compiled.library("\n".join([poisoned, *wrappers, ""]), self._flags, _HEADER.read_text())
        kernels = {name: loaded[f"run_{name}"] for name in names}
        for kernel in kernels.values():
            kernel.restype = ctypes.c_char_p
        return kernels

    def launch(self, kernel, blocks, arguments):
        values = np.zeros(len(arguments), np.int64)
        for place, value in enumerate(arguments):
            if isinstance(value, np.ndarray):
                values[place] = value.ctypes.data
            elif isinstance(value, float):
                values.view(np.float64)[place] = value
            else:
                values[place] = value
        error = kernel(blocks, values.ctypes.data_as(ctypes.c_void_p))
        assert error is None, error.decode()
        assert not self.counted.any(), "a kernel has left counters that are not 0"
        self.launches.append(blocks)

    def holds(self, array):
        return isinstance(array, self.array_type)

    def counters(self, count):
        assert count <= self.counted.size
        return self.counted.ctypes.data

    def upload(self, source, target):
        target[: source.nbytes] = source
        self.uploads.append(source.nbytes)
