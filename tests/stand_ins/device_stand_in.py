"""A stand-in for arrays on a GPU: NumPy arrays that count how often somebody looks at their values.

Whatever turns a value into a Python number or decides on it (``bool``, ``float``, ``int``, ``item``...) would wait for
the device. Elementwise arithmetic, reductions, copies and assignments would not, and stay stand-ins; new ones lie in
memory as CuPy's would, see :mod:`benchmarks.cupy_rules`. What cannot be seen from here is a plain
``np.asarray`` of a stand-in, which CuPy refuses.
"""

import numpy as np

from benchmarks import cupy_rules

_LOOKS = {np.array_equal, np.allclose, np.nonzero, np.flatnonzero, np.argwhere, np.unique, np.array_repr, np.array_str}


class DeviceArray(np.ndarray):
    reads = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        function = getattr(ufunc, method)
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if out:
            function(*map(_plain, inputs), out=tuple(map(_plain, out)), **keywords)
            return out[0] if len(out) == 1 else out
        return _new(name, cupy_rules.compute(function, name, tuple(map(_plain, inputs)), keywords))

    def __array_wrap__(self, array, context=None, return_scalar=False):
        return np.asarray(array).view(DeviceArray)

    def __array_function__(self, function, types, arguments, keywords):
        if function in _LOOKS:
            DeviceArray.reads += 1
        return _new(function.__name__, super().__array_function__(function, types, arguments, keywords))

    def __getitem__(self, index):
        if isinstance(index, np.ndarray) and index.dtype == bool:  # how many there are decides on the shape
            DeviceArray.reads += 1
        value = super().__getitem__(index)
        is_new = isinstance(value, np.ndarray) and not np.may_share_memory(value, self)
        return _on_device(cupy_rules.laid_out("getitem", value) if is_new else value)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def dot(self, other, out=None):
        return _on_device(super().dot(other, out))


def _counting(name):
    def method(self, *arguments):
        DeviceArray.reads += 1
        return getattr(self.view(np.ndarray), name)(*arguments)

    return method


_READERS = ("__bool__", "__float__", "__int__", "__index__", "__complex__", "__contains__", "__format__", "__reduce__")
for _name in (*_READERS, "item", "tolist", "tobytes", "nonzero"):
    setattr(DeviceArray, _name, _counting(_name))


def _plain(value):
    return value.view(np.ndarray) if isinstance(value, DeviceArray) else value


def _new(name, value):
    if isinstance(value, (tuple, list)):
        return type(value)(_new(name, part) for part in value)
    if isinstance(value, np.ndarray) and value.base is None:  # views of arrays stay
        value = cupy_rules.laid_out(name, value)
    return _on_device(value)


def _on_device(value):
    return np.asarray(value).view(DeviceArray) if isinstance(value, (np.ndarray, np.generic)) else value


def send(link):
    """Moves the parameters and persistent arrays of a link to the stand-in device, in place of ``to_device``."""
    from benchmarks import null_device  # not at the top: it imports Chainer, which fake_cupy has to come before

    return null_device.send(link, DeviceArray)


def array(value):
    """A copy of a NumPy array on the stand-in device."""
    return np.array(value).view(DeviceArray)
