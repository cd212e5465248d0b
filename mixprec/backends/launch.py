"""Compiling and launching CUDA kernels of our own, through CuPy.

All work of the batched update and the primitives on a device, except cuDNN, goes through an object of this interface,
so that tests can replace it by one that runs the same source on the host.
"""

import collections
import functools
import itertools
import operator
import threading
from importlib import resources
from typing import NamedTuple

import numpy as np

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import settings
from mixprec.backends.device_log import is_recording, record
from mixprec.backends.stored import Stored

# Of arrays of CuPy. `flags` would be another object for each of them.
_CONTIGUOUS, _DEVICE, _ADDRESS = map(operator.attrgetter, ("_c_contiguous", "data.device_id", "data.ptr"))
_STRIDES = operator.attrgetter("strides")
# No contraction into fused multiply-adds: results then equal NumPy's, and are the same in every kernel.
OPTIONS = ("-std=c++17", "--fmad=false")
# Limit of bytes of pinned memory in running copies. A host that queues steps faster than they are done would otherwise
# pin a batch for each of them.
_STAGED = 2**30
_COUNTERS = 4096  # on a stream
_PER_THREAD = 2  # cudaStreamPerThread: the address of as many streams as there are threads


@functools.cache
def text_of(package, name):
    """Returns the text of a file in the folder ``kernels`` of a package."""
    return resources.files(package).joinpath("kernels", name).read_text("utf-8")


def record_launch(name, blocks, arguments):
    """Records a launch with all numbers, including structs; arguments as for :meth:`CupyLauncher.launch`."""
    if is_recording():
        numbers = ([x] if np.isscalar(x) else x.ravel().view(np.int64).tolist() for x in arguments)
        record("kernel", name, blocks, *itertools.chain.from_iterable(numbers))


def _by_value(argument):
    """Returns an argument of a kernel in the form that CuPy takes."""
    if isinstance(argument, np.ndarray):
        return argument.reshape(-1).view(np.dtype((np.void, argument.nbytes)))  # an array of one element
    return np.float64(argument) if isinstance(argument, float) else np.int64(argument)


class Kernel(NamedTuple):
    """A compiled kernel.

    Attributes:
        name: name in its source.
        function: CuPy's function, to be launched.
    """

    name: str
    function: object


class CupyLauncher:
    """Launches on the current stream of one device, which has to be the same in all steps.

    Args:
        device: number of the CUDA device.

    Attributes:
        threads: number of threads of a block.
        chunk: number of elements of a parameter for a block.
    """

    threads = 256
    chunk = 8192

    def __init__(self, device):
        import cupy  # not at the top: mixprec runs without it

        self._cupy = cupy
        self._device = cupy.cuda.Device(device)
        # A separate pool: CuPy's default pool may hand out memory that another upload still reads.
        self._pinned = cupy.cuda.PinnedMemoryPool()
        self._staging = collections.defaultdict(collections.deque)  # by size: (pinned memory, event after its copy)
        self._staged = 0  # bytes
        self._counters = {}  # by stream

    def compile(self, source, names):
        """Returns each :class:`Kernel` of a CUDA source by its name; the same source is compiled once."""
        with self._device:
            return _compile(self._device.id, source, names)

    def launch(self, kernel, blocks, arguments):
        """Launches a kernel.

        Args:
            kernel: from :meth:`compile`.
            blocks: number of blocks.
            arguments: ints (addresses, or ``long long``), floats (``double``), and arrays of NumPy, C-contiguous, of
                which the kernel gets the memory as it is now, as a struct.
        """
        values = tuple(map(_by_value, arguments))
        record_launch(kernel.name, blocks, arguments)
        with self._device:
            kernel.function((blocks,), (self.threads,), values)

    def holds(self, array):
        """Whether ``array`` is an array on the device."""
        return isinstance(array, self._cupy.ndarray) and array.device.id == self._device.id

    def address(self, array):
        """Returns the address of the first element of an array on the device."""
        return array.data.ptr

    def addresses(self, arrays):
        """Returns the addresses of many arrays, or ``None`` if one is not on the device."""
        try:
            return list(map(_ADDRESS, arrays)) if set(map(_DEVICE, arrays)) <= {self._device.id} else None
        except AttributeError:  # an array of NumPy
            return None

    def orders(self, arrays):
        """Returns a value that is equal for arrays of the same shapes and dtypes with the same memory layout.

        Returns:
            ``()`` if all are C-contiguous, otherwise ``(contiguous, strides)``: for each array whether it is, and the
            strides of those that are not; ``None`` if one is not of CuPy.
        """
        try:
            if all(map(_CONTIGUOUS, arrays)):
                return ()
            contiguous = list(map(_CONTIGUOUS, arrays))
        except AttributeError:
            return None
        return contiguous, list(map(_STRIDES, itertools.compress(arrays, map(operator.not_, contiguous))))

    def empty(self, shape, dtype):
        """Returns a new uninitialized array on the device."""
        with self._device:
            return self._cupy.empty(shape, dtype)

    def full(self, shape, value, dtype):
        """Returns a new array on the device."""
        with self._device:
            return self._cupy.full(shape, value, dtype)

    def contiguous(self, array):
        """Returns a copy that is contiguous."""
        with self._device:
            return array.copy(order="C")

    def zero(self, array):
        """Fills an array with zeros."""
        with self._device:
            array[...] = 0

    def counters(self, count):
        """Returns the address of numbers of 32 bits for kernels that count their blocks: 0, and left 0 by each kernel.

        They are always the same on the current stream, on which kernels run one after the other.

        Raises:
            CaptureError: there are none yet, and the stream is capturing a CUDA graph, which would create them in each
                launch.
        """
        if count > _COUNTERS:
            raise ValueError(f"{count} counters requested, and there are {_COUNTERS}")
        with self._device:
            stream = self._cupy.cuda.get_current_stream()
            key = (stream.ptr, threading.get_ident()) if stream.ptr == _PER_THREAD else stream.ptr
            counters = self._counters.get(key)
            if counters is None:
                if stream.is_capturing():
                    raise CaptureError(
                        "counters for kernels cannot be made while a CUDA graph captures: run the step "
                        "eagerly first, on the same stream"
                    )
                counters = self._counters[key] = self._cupy.zeros(_COUNTERS, np.uint32)
            return counters.data.ptr

    def upload(self, source, target):
        """Copies without waiting for the device, as long as not too many copies are under way.

        Args:
            source: NumPy array of bytes, which may change as soon as this returns.
            target: array on the device, at least as long.

        Raises:
            CaptureError: the current stream is capturing a CUDA graph, every launch of which would copy the present
                bytes.
        """
        size = source.nbytes
        with self._device:
            stream = self._cupy.cuda.get_current_stream()
            if stream.is_capturing():
                raise CaptureError(
                    "values of the host would be copied while a CUDA graph captures: they would be frozen"
                )
            capacity = 1 << (size - 1).bit_length()
            memory, event = self._free_staging(capacity)
            np.frombuffer(memory, np.uint8, size)[:] = source
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(target.data.ptr, memory.ptr, size, runtime.memcpyHostToDevice, stream.ptr)
            event.record(stream)
            self._staging[capacity].append((memory, event))

    def _free_staging(self, capacity):
        """Returns pinned memory without pending copies, and its event."""
        staging = self._staging[capacity]  # the one that was used least recently comes first
        if staging:
            _, event = staging[0]
            if (is_free := event.done) or self._staged + capacity > _STAGED:
                if not is_free:
                    event.synchronize()
                return staging.popleft()
        self._staged += capacity
        return self._pinned.malloc(capacity), self._cupy.cuda.Event(disable_timing=True)


@functools.cache  # for good: a module that is dropped is unloaded, perhaps while a graph captures
def _compile(device, source, names):
    import cupy

    capability = cupy.cuda.Device(device).compute_capability
    version = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    made_by = f"NVRTC {version}, CuPy {cupy.__version__}, sm_{capability}, {' '.join(OPTIONS)}"
    stored = Stored(settings.folder("kernels"), "compiled kernels", made_by)
    binary = stored.get(source)
    if binary is None:
        binary = binary_of(source)
        stored.put(source, binary)
    module = cupy.cuda.Module()
    module.load(binary)
    return {name: Kernel(name, module.get_function(name)) for name in names}


def binary_of(source):
    """Compiles a CUDA source for the current device.

    Not by ``cupy.RawModule``, which always adds ``-ftz=true``: numbers below 2**-126 would become 0.
    """
    from cupy.cuda import compiler

    binary, _ = compiler.compile_using_nvrtc(source, OPTIONS, filename="kernels.cu")
    return binary
