"""All reads of device values by the host.

A read waits until the device has done all earlier work, and until then no new work is queued: on a fast GPU that costs
more than the computation. ``docs/numerics.md`` lists the reads of a step. A number that is not needed at once is copied
by :func:`to_host_async` instead: the host continues, and reads it when it has arrived.
"""

import collections
import functools

import chainer
import numpy as np

# Copies with the memory that they read and write, kept even if the number is not needed any more; the oldest first.
_under_way = collections.deque()


def on_host(value):
    """Whether the host can read ``value`` without waiting: a Python or NumPy number, or a NumPy array."""
    return type(value) is np.ndarray or isinstance(value, (bool, int, float, np.generic))


def to_host(value):
    """Returns a number or an array of shape () as a Python number, waiting for its device if necessary."""
    return value.item() if hasattr(value, "item") else value


def stored(serializer, name, value):
    """Saves or loads a number; it may be missing in a file.

    Args:
        serializer: Chainer's serializer.
        name: name of the number.
        value: number to save, or an array of shape (), which is read if it is on a device.

    Returns:
        The number, as it was saved or loaded.

    Raises:
        KeyError: it is not in the file; a deserializer that is not strict returns its argument instead.
    """
    if not isinstance(serializer, chainer.Deserializer):
        return serializer(name, to_host(value))
    loaded = serializer(name, None)
    if loaded is None:
        raise KeyError(name)
    return loaded


def loaded(serializer, name):
    """Returns the value of a name in a Chainer deserializer, or ``None``."""
    try:
        return serializer(name, None)
    except (KeyError, ValueError):  # Chainer's npz and HDF5 serializers raise these for a missing name
        return None


def to_host_async(value):
    """Starts to copy a number to the host, in order with the device's work; returns a :class:`HostCopy`.

    Args:
        value: a number, or an array of shape () on any device.
    """
    if not on_host(value) and chainer.backend.get_array_module(value).__name__ == "cupy":
        return _Copied(value)
    return HostCopy(value)


class HostCopy:
    """A number that is being copied to the host, or has arrived.

    Args:
        value: a number, or an array of shape (), that can be read without waiting.
    """

    done = True

    def __init__(self, value):
        self._value = np.asarray(value).copy()

    @property
    def value(self):
        """The number as a NumPy scalar; waits for its arrival, and for no later work."""
        return self._value[()]


class _Copied(HostCopy):
    """A copy into pinned memory, on CuPy's current stream."""

    def __init__(self, array):
        import cupy

        self._array = array
        self._memory = _pinned().malloc(array.nbytes)
        self._value = np.frombuffer(self._memory, array.dtype, 1).reshape(())
        self._event = cupy.cuda.Event(disable_timing=True)
        with cupy.cuda.Device(array.data.device_id):
            stream = cupy.cuda.get_current_stream()
            array.data.copy_to_host_async(self._memory.ptr, array.nbytes, stream)
            self._event.record(stream)
        while _under_way and _under_way[0].done:
            _under_way.popleft()
        _under_way.append(self)

    def __reduce__(self):
        return HostCopy, (self.value,)

    @property
    def done(self):
        """Whether it has arrived; never waits."""
        return self._event.done

    @property
    def value(self):
        """See :attr:`HostCopy.value`."""
        self._event.synchronize()
        return self._value[()]


@functools.cache
def _pinned():
    import cupy

    return cupy.cuda.PinnedMemoryPool()
