"""A GPU through CuPy, as the cuDNN backend uses it; tests replace it by an object with the same interface."""

import itertools

import numpy as np

from mixprec.backends.cudnn import difference
from mixprec.backends.launch import CupyLauncher, text_of

_SPIN_CYCLES = 2_000_000  # 1-2 milliseconds


class CupyDevice:
    """A GPU. Streams are the current ones of CuPy.

    Args:
        number: number of the CUDA device.

    Attributes:
        name: as NVIDIA calls it.
        capability: compute capability, 90 for 9.0.
        driver: version of CUDA that the driver supports, 13000 for 13.0.
    """

    def __init__(self, number):
        import cupy  # not at the top: mixprec runs without it

        self._cuda = cupy.cuda
        self._device = cupy.cuda.Device(number)
        self._launcher = CupyLauncher(number)
        properties = cupy.cuda.runtime.getDeviceProperties(number)
        self.name = properties["name"].decode()
        self.capability = 10 * properties["major"] + properties["minor"]
        self.driver = cupy.cuda.runtime.driverGetVersion()

    def current(self):
        """Returns a context manager in which the device is the current one."""
        return self._device

    def stream(self):
        """Returns the address of the current stream."""
        return self._cuda.get_current_stream().ptr

    def capturing(self):
        """Whether the current stream is capturing a CUDA graph."""
        return self._cuda.get_current_stream().is_capturing()

    def allocate(self, size):
        """Returns memory of ``size`` bytes with an address ``ptr``, a multiple of 256; free as soon as it is dropped.

        CuPy gives it to other work on this stream only, which comes later.
        """
        with self._device:
            return self._cuda.alloc(size)

    def copy(self, target, source, size):
        """Copies bytes between addresses on the device, on the current stream."""
        runtime = self._cuda.runtime
        with self._device:
            runtime.memcpyAsync(target, source, size, runtime.memcpyDeviceToDevice, self.stream())

    def fill(self, address, byte, size):
        """Writes a byte ``size`` times, on the current stream."""
        with self._device:
            self._cuda.runtime.memsetAsync(address, byte, size, self.stream())

    def synchronize(self):
        """Waits for the current stream, and raises its errors."""
        with self._device:
            self._cuda.get_current_stream().synchronize()

    def difference(self, a, b, count, dtype):
        """Compares two arrays, and waits for the result.

        Args:
            a: address of the reference.
            b: address of the other array.
            count: number of elements.
            dtype: ``"float16"``, ``"bfloat16"`` or ``"float32"``.

        Returns:
            as :func:`mixprec.backends.cudnn.difference.result`.
        """
        found = np.empty((difference.BLOCKS * self._launcher.threads, 3), np.float32)
        memory = self.allocate(found.nbytes)
        with self._device:
            kernel = self._launcher.compile(difference.source(), ("difference",))["difference"]
            arguments = difference.arguments(a, b, count, dtype, memory.ptr)
            self._launcher.launch(kernel, difference.BLOCKS, arguments)
            self.synchronize()
            runtime = self._cuda.runtime
            runtime.memcpy(found.ctypes.data, memory.ptr, found.nbytes, runtime.memcpyDeviceToHost)
        return difference.result(found)

    def times(self, functions):
        """Calls functions one after the other and returns their times on the device, in milliseconds."""
        with self._device:
            kernel = self._launcher.compile(text_of("mixprec.backends", "spin.cu"), ("spin",))["spin"]
            stream = self._cuda.get_current_stream()
            events = [self._cuda.Event() for _ in range(len(functions) + 1)]
            self._launcher.launch(kernel, 1, (_SPIN_CYCLES,))
            events[0].record(stream)
            for function, event in zip(functions, events[1:], strict=True):
                function()
                event.record(stream)
            events[-1].synchronize()
            return [self._cuda.get_elapsed_time(*pair) for pair in itertools.pairwise(events)]
