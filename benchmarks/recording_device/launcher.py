"""What all launchers of stand-ins share, and launcher, cuDNN and matrices of a device that only takes notes."""

import numpy as np

from benchmarks.recording_device.arrays import Array
from mixprec.backends.device_log import record
from mixprec.backends.launch import record_launch
from mixprec.backends.memory import flat

# The address of numbers that Chainer leaves on the host: that of their memory would be another one now and then, and so
# would be what a step does. A device's pool of memory gives the same one again.
_OF_NUMBERS = 256


class Address(int):
    """The address of an array on the device, which knows what lies there.

    Attributes:
        shape: of the array.
        nbytes: of the array.
    """

    def __new__(cls, array):
        address = super().__new__(cls, array.ctypes.data if isinstance(array, Array) else _OF_NUMBERS)
        address.shape, address.nbytes = array.shape, array.nbytes
        return address


class ArrayLauncher:
    """What :class:`~mixprec.backends.launch.CupyLauncher` can do with arrays, of a device of the host.

    Attributes:
        array_type: class of the arrays.
    """

    array_type = Array

    def holds(self, array):
        """Whether ``array`` is an array on the device.

        Numbers are, as for Chainer the device is the host, to which ``device.send`` has nothing to copy.
        """
        return isinstance(array, self.array_type) or (isinstance(array, np.ndarray) and array.ndim == 0)

    def address(self, array):
        """Returns the address of the first element."""
        return array.ctypes.data

    def addresses(self, arrays):
        """Returns the addresses of many arrays, or ``None`` if one is not on the device."""
        return [array.ctypes.data for array in arrays] if all(map(self.holds, arrays)) else None

    def orders(self, arrays):
        """See :meth:`CupyLauncher.orders <mixprec.backends.launch.CupyLauncher.orders>`."""
        if not all(map(self.holds, arrays)):
            return None
        contiguous = [array.flags.c_contiguous for array in arrays]
        if all(contiguous):
            return ()
        return contiguous, [array.strides for array, is_so in zip(arrays, contiguous, strict=True) if not is_so]

    def empty(self, shape, dtype):
        """Returns a new array on the device, with anything in it."""
        shape = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
        return self.array_type.memory.new(shape, np.dtype(dtype)).view(self.array_type)

    def full(self, shape, value, dtype):
        """Returns a new array on the device with one value."""
        array = self.empty(shape, dtype)
        array.fill(value)
        return array

    def contiguous(self, array):
        """Returns a copy that is contiguous."""
        return array.copy(order="C")

    def zero(self, array):
        """Fills an array with zeros."""
        array.fill(0)


class Launcher(ArrayLauncher):
    """In place of :class:`~mixprec.backends.launch.CupyLauncher`.

    Attributes:
        threads: number of threads of a block.
        chunk: number of elements of a parameter for a block.
    """

    threads = 256
    chunk = 8192

    def compile(self, source, names):
        """Returns the names by themselves."""
        return {name: name for name in names}

    def launch(self, kernel, blocks, arguments):
        """Notes a launch."""
        record_launch(kernel, blocks, arguments)

    def address(self, array):
        """Returns the :class:`Address` of the first element."""
        return Address(array)

    def counters(self, count):
        """Returns an address; nothing counts."""
        return 0

    def upload(self, source, target):
        """Copies, and notes that as an upload with the name ``"table"``.

        Args:
            source: NumPy array of bytes, which may change as soon as this returns.
            target: array on the device, at least as long.

        Raises:
            RuntimeError: a graph captures.
        """
        Array.memory.upload("table", target.ctypes.data, source.nbytes)
        flat(target.view(np.ndarray)).view(np.uint8)[: source.nbytes] = source


class CudnnContext:
    """In place of :class:`~mixprec.backends.cudnn.context.CudnnContext`: supports what cuDNN 9 does on an H200.

    Attributes:
        capability: of an H200.
    """

    capability = 90

    def supports(self, operation):
        """Whether there is an engine."""
        x, has = operation.inputs[0], operation.has
        if operation.kind.startswith("batch_norm"):
            adds_only = "add" in has and not operation.attribute("relu")
            return x.shape[-1] % (4 if x.dtype == "float32" else 8) == 0 and not adds_only
        if "scale" in has:
            return operation.kind == "conv_fprop" and x.dtype != "float32" and "sum" not in has
        if "sum" in has:
            k, r, s, c = operation.inputs[1].shape
            return x.dtype == "float16" and r * s <= 25 and k % 8 == c % 8 == 0 and c == x.shape[-1]
        return True

    def plan(self, operation):
        """Returns an object whose ``run`` notes the operation."""
        return _Plan(operation)

    def known(self, key):
        """Returns ``None``: nothing is measured."""

    def measures(self):
        """Returns ``False``."""
        return False


class _Plan:
    def __init__(self, operation):
        self.operation = operation

    def run(self, *addresses):
        record("cudnn", self.operation.kind, self.operation, *addresses)


class Matrices:
    """In place of :class:`~mixprec.backends.cuda.matrix_context.MatrixContext`: notes products."""

    def add_moments(self, *arguments):
        """Notes the arguments."""
        record("blas", "product", *arguments)

    def multiply(self, *arguments, **keywords):
        """Notes the arguments."""
        record("blas", "product", *arguments, *keywords.items())

    product = multiply
