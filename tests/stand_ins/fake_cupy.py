"""A stand-in for CuPy on NumPy: Chainer's own ``forward_gpu`` code runs on the host, its cuDNN branches too.

Arrays are ``device_stand_in.DeviceArray``; what is not special falls through to NumPy, and its result becomes such
an array. Kernels are compiled by g++, see ``fake_cupy_kernels``; cuDNN is ``fake_cudnn``, and mixprec's own
kernels those of ``cuda_on_host.HostCuda``. :func:`install` has to come before the first import of Chainer.

It is a plugin of pytest: ``python -m pytest -p tests.stand_ins.fake_cupy tests/bridge/test_gpu.py -m gpu``.
"""

import contextlib
import functools
import sys
import types

import numpy as np
import pytest

from tests.stand_ins import fake_cudnn, fake_cupy_kernels
from tests.stand_ins.device_stand_in import DeviceArray
from tests.stand_ins.fake_cupy_devices import Device, Event, MemoryPool, Stream


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    """Before tests/conftest.py imports mixprec, and that Chainer."""
    install()


def install():
    """Makes ``import cupy`` give the stand-in, with one device, and mixprec compute with it on the host."""
    assert "chainer" not in sys.modules, "fake_cupy.install() comes before the first import of Chainer"

    sys.modules.update(_modules())
    sys.modules["cudnn"] = fake_cudnn
    nvidia = types.ModuleType("cuda")
    nvidia.__path__ = []
    nvidia.pathfinder = types.ModuleType("cuda.pathfinder")
    nvidia.pathfinder.load_nvidia_dynamic_lib = lambda name: None
    sys.modules.update({"cuda": nvidia, "cuda.pathfinder": nvidia.pathfinder})
    _give_arrays_what_cupy_has()

    from mixprec.bridge import placing
    from mixprec.compat import gpu_presence

    gpu_presence.gpu_is_there = placing.gpu_is_there = lambda: True

    from mixprec import backends
    from mixprec.backends import cuda
    from tests.stand_ins.cuda_on_host import HostCuda

    primitives = HostCuda()
    backends.register(DeviceArray, primitives)
    cuda.primitives_of = lambda device_id: primitives


# --- arrays


def _give_arrays_what_cupy_has():
    DeviceArray.device = property(lambda self: Device(0))
    DeviceArray.data = property(lambda self: types.SimpleNamespace(ptr=self.ctypes.data, device_id=0))
    DeviceArray._c_contiguous = property(lambda self: self.flags.c_contiguous)
    DeviceArray.get = lambda self, *arguments, **keywords: np.array(self.view(np.ndarray))
    DeviceArray.set = lambda self, value, stream=None: self.__setitem__(..., value)
    DeviceArray.reduced_view = lambda self, dtype=None: self


def _on_device(value):
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value).view(DeviceArray)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_on_device, value))
    return value


def _through(function):
    """A function of NumPy with results on the device; as CuPy's it takes no arrays of the host, but as indices."""

    @functools.wraps(function)
    def call(*arguments, **keywords):
        for value in arguments if isinstance(function, np.ufunc) else arguments[:1]:
            if type(value) is np.ndarray:
                raise TypeError(f"Unsupported type {np.ndarray} for cupy.{function.__name__}")
        return _on_device(function(*arguments, **keywords))

    return call


def _asarray(value, dtype=None, *arguments, **keywords):
    convert = np.asarray if isinstance(value, DeviceArray) else np.array  # what is uploaded is a copy
    return _on_device(convert(value, dtype, *arguments, **keywords))


def _upload(function):
    """As :func:`_through`, of what takes arrays of the host too."""
    return functools.wraps(function)(lambda *arguments, **keywords: _on_device(function(*arguments, **keywords)))


class _Fallback(types.ModuleType):
    """A module whose unknown names are those of a module of NumPy."""

    def __init__(self, name, module, **attributes):
        super().__init__(name)
        self.__path__ = []
        self._module = module
        self.__dict__.update(attributes)

    def __getattr__(self, name):
        if name.startswith("__") or name == "cudnn":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(self._module, name)
        if callable(value) and not isinstance(value, type):
            value = _through(value)
        setattr(self, name, value)
        return value


# --- the modules


def _random(generator=None):
    generator = np.random.default_rng(generator)

    def drawn(draw):
        return lambda *shape, dtype=float: _on_device(np.asarray(draw(shape)).astype(dtype))

    def sized(draw):
        return lambda *arguments, size=None, dtype=float: _on_device(np.asarray(draw(*arguments, size)).astype(dtype))

    return {
        "seed": lambda seed=None: None,
        "get_random_state": lambda: None,
        "set_random_state": lambda state: None,
        "rand": drawn(generator.random),
        "randn": drawn(generator.standard_normal),
        "standard_normal": lambda size=None, dtype=float: _on_device(generator.standard_normal(size).astype(dtype)),
        "normal": lambda loc=0.0, scale=1.0, size=None, dtype=float: _on_device(
            np.asarray(generator.normal(loc, scale, size)).astype(dtype)
        ),
        "uniform": sized(generator.uniform),
        "laplace": sized(generator.laplace),
        "RandomState": lambda seed=None: types.SimpleNamespace(**_random(seed)),
    }


def _memoize(for_each_device=False):
    def decorate(function):
        kept = {}

        @functools.wraps(function)
        def call(*arguments, **keywords):
            key = arguments, frozenset(keywords.items())
            if key not in kept:
                kept[key] = function(*arguments, **keywords)
            return kept[key]

        _memoized.append(kept)
        return call

    return decorate


_memoized = []


def _clear_memo():
    for kept in _memoized:
        kept.clear()


def _fuse(*arguments, **keywords):
    return arguments[0] if arguments and callable(arguments[0]) else lambda function: function


def _get_array_module(*arrays):
    return sys.modules["cupy"] if any(isinstance(array, DeviceArray) for array in arrays) else np


def _modules():
    """Returns the modules by name."""
    made = {}

    def module(name, source=None, **attributes):
        made[name] = _Fallback(name, source, **attributes) if source else types.ModuleType(name)
        if not source:
            made[name].__path__ = []
            made[name].__dict__.update(attributes)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(made[parent], own, made[name])

    module(
        "cupy",
        np,
        __version__="14.2.0",
        ndarray=DeviceArray,
        array=_upload(np.array),
        asarray=_asarray,
        ascontiguousarray=_through(np.ascontiguousarray),
        asnumpy=lambda array, *rest, **keywords: np.array(np.asarray(array)),
        copyto=lambda target, source, **keywords: np.copyto(target, source, **keywords),
        get_array_module=_get_array_module,
        ElementwiseKernel=fake_cupy_kernels.ElementwiseKernel,
        ReductionKernel=fake_cupy_kernels.ReductionKernel,
        RawKernel=fake_cupy_kernels.RawKernel,
        memoize=_memoize,
        clear_memo=_clear_memo,
        fuse=_fuse,
        get_default_memory_pool=MemoryPool,
        get_default_pinned_memory_pool=MemoryPool,
    )
    module("cupy._util", PerformanceWarning=type("PerformanceWarning", (Warning,), {}))
    module("cupy.random", **_random())
    module("cupy.linalg", np.linalg)
    module(
        "cupy.cuda",
        Device=Device,
        Stream=Stream,
        Event=Event,
        MemoryPool=MemoryPool,
        PinnedMemoryPool=MemoryPool,
        get_current_stream=Stream,
        get_allocator=lambda: None,
        set_allocator=lambda allocator=None: None,
        using_allocator=lambda allocator=None: contextlib.nullcontext(),
        get_elapsed_time=lambda start, end: 1.0,
        nvtx_enabled=False,
        nccl_available=False,
    )
    Stream.null = Stream()
    module("cupy.cuda.cublas")
    module("cupy.cuda.driver", CUDADriverError=type("CUDADriverError", (RuntimeError,), {}), ctxGetCurrent=lambda: 1)
    module("cupy.cuda.memory_hook", MemoryHook=object)
    module("cupy.cuda.memory", MemoryPointer=object)
    module(
        "cupy.cuda.runtime",
        getDeviceCount=lambda: 1,
        getDevice=lambda: 0,
        setDevice=lambda device: None,
        getDeviceProperties=lambda device: {"name": b"NumPy", "totalGlobalMem": 0, "major": 9, "minor": 0},
        runtimeGetVersion=lambda: 13000,
        driverGetVersion=lambda: 13000,
        deviceSynchronize=lambda: None,
        CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
    )
    module(
        "cupyx",
        scatter_add=lambda array, index, value: np.add.at(array, index, value),
        rsqrt=lambda x, dtype=None: _on_device(1 / np.sqrt(x, dtype=dtype)),
    )
    module("cupyx.scipy")
    module("cupyx.scipy.linalg")
    module("cupyx.scipy.special")
    return made
