"""Counts what a process asks of the CUDA driver through CuPy, cuDNN or PyTorch. By the callbacks of CUPTI.

CUPTI is NVIDIA's interface for profilers (https://docs.nvidia.com/cupti): it calls back at the beginning and at the end
of each function of the driver, those that the CUDA runtime calls included. No counter of the GPU is read, so that
it needs no permission.
"""

import collections
import contextlib
import ctypes
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re

_INSTALL = "pip install nvidia-cuda-cupti  (CUDA 12: nvidia-cuda-cupti-cu12), or NVIDIA's CUDA toolkit"
_SONAMES = ("libcupti.so.13", "libcupti.so.12")
_DRIVER_API = 1  # CUPTI_CB_DOMAIN_DRIVER_API
_ENTER = 0  # CUPTI_API_ENTER
# The beginning of CUpti_CallbackData, an int: whether the function begins or ends.
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int))

# Names of functions, without version, and without the suffix of those for the default stream of a thread.
_SUFFIXES = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_LAUNCHES = {
    *("cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchKernel", "cuLaunchKernelEx"),
    *("cuLaunchCooperativeKernel", "cuLaunchCooperativeKernelMultiDevice"),
}
_GRAPH_LAUNCHES = {"cuGraphLaunch", "cuGraphLaunchWithArguments"}
_WAITS = {"cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}
_BETWEEN_DEVICES = re.compile(r"cuMemcpy([DA]to[DA]|(3D)?Peer)$")  # for which the host does not wait


class CuptiMissing(RuntimeError):
    """CUPTI is not installed, or does not work here."""


@dataclasses.dataclass
class Calls:
    """Numbers of calls, from all threads; those that are recorded in a CUDA graph while it is captured count, too.

    Attributes:
        launches: of kernels.
        graph_launches: of CUDA graphs.
        syncs: that make the host wait for the device: for a stream, an event or a context, and copies between host and
            device that are not asynchronous. A copy that is called so, but ends in pageable memory, waits as well, and
            so does giving memory back; that cannot be seen here.
    """

    launches: int = 0
    graph_launches: int = 0
    syncs: int = 0


@contextlib.contextmanager
def counting():
    """Gives :class:`Calls`, whose numbers are there when the block has ended.

    In a process only one can count at a time, and none while a profiler does, such as PyTorch's. A call of the
    driver takes some microseconds more inside of the block.

    Raises:
        CuptiMissing: one line that says why nothing can be counted.
    """
    cupti, calls = _load(), Calls()
    seen = cupti.subscribe()
    try:
        yield calls
    finally:
        cupti.unsubscribe()
        for callback, number in collections.Counter(seen).items():
            kind = cupti.kinds[callback]
            setattr(calls, kind, getattr(calls, kind) + number)


def why_not():
    """Returns in one line why :func:`counting` does not work here, or ``""``."""
    try:
        with counting():
            return ""
    except CuptiMissing as error:
        return str(error)


def kind_of(name):
    """Returns the attribute of :class:`Calls` in which a function of the driver counts, by its name, or ``None``."""
    name = _SUFFIXES.sub("", name)
    if name in _LAUNCHES:
        return "launches"
    if name in _GRAPH_LAUNCHES:
        return "graph_launches"
    copies_and_waits = name.startswith("cuMemcpy") and not name.endswith("Async") and not _BETWEEN_DEVICES.match(name)
    return "syncs" if copies_and_waits or name in _WAITS else None


class _Cupti:
    """The library.

    Args:
        path: of it.

    Attributes:
        kinds: dict from numbers of functions, which are others in each version, to what :func:`kind_of` says.

    Raises:
        OSError: it cannot be loaded.
        CuptiMissing: it does not work here.
    """

    def __init__(self, path):
        self._library = ctypes.CDLL(str(path))
        text, handle = ctypes.POINTER(ctypes.c_char_p), ctypes.c_void_p
        self._library.cuptiGetResultString.argtypes = [ctypes.c_int, text]
        self._library.cuptiGetCallbackName.argtypes = [ctypes.c_int, ctypes.c_uint32, text]
        self._library.cuptiSubscribe.argtypes = [ctypes.POINTER(handle), _CALLBACK, ctypes.c_void_p]
        self._library.cuptiEnableCallback.argtypes = [ctypes.c_uint32, handle, ctypes.c_int, ctypes.c_uint32]
        self._library.cuptiUnsubscribe.argtypes = [handle]
        self._seen = []
        self._callback = _CALLBACK(self._note)  # as long as the process lives: threads may be inside of it
        self._subscriber = handle()
        kinds = {number: kind_of(name) for number, name in enumerate(self._names())}
        self.kinds = {number: kind for number, kind in kinds.items() if kind}

    def subscribe(self):
        """Begins; returns the list into which numbers of functions come, one for each call."""
        self._check("cuptiSubscribe", ctypes.byref(self._subscriber), self._callback, None)
        self._seen = seen = []
        try:
            for number in self.kinds:
                self._check("cuptiEnableCallback", 1, self._subscriber, _DRIVER_API, number)
        except CuptiMissing:
            self.unsubscribe()
            raise
        return seen

    def unsubscribe(self):
        """Ends."""
        self._check("cuptiUnsubscribe", self._subscriber)

    def _note(self, user, domain, number, site):
        if site[0] == _ENTER:  # nothing may be raised here
            self._seen.append(number)

    def _names(self):
        """Yields the names of the driver's functions in the order of their numbers, from 0."""
        name, number = ctypes.c_char_p(), 0
        self._check("cuptiGetCallbackName", _DRIVER_API, number, ctypes.byref(name))
        while not self._library.cuptiGetCallbackName(_DRIVER_API, number, ctypes.byref(name)):
            yield name.value.decode()
            number += 1

    def _check(self, function, *arguments):
        status = getattr(self._library, function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuptiGetResultString(status, ctypes.byref(text))
            raise CuptiMissing(f"CUPTI does not work here: {function}: {(text.value or b'error').decode()} ({status})")


@functools.cache
def _load():
    reason = ""
    for path in [*_paths(), *_SONAMES]:
        try:
            return _Cupti(path)
        except OSError as error:
            reason = reason or (f" ({error})" if os.path.exists(path) else "")
    raise CuptiMissing(f"libcupti.so of CUDA is missing{reason}: {_INSTALL}")


def _paths():
    """Returns where the library lies: among NVIDIA's wheels, on which PyTorch depends, too, or in a CUDA toolkit."""
    wheels = importlib.util.find_spec("nvidia")
    folders = [(place, "*/lib") for place in (wheels.submodule_search_locations if wheels else ())]
    folders += [(os.environ[key], "extras/CUPTI/lib64") for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    found = [sorted(pathlib.Path(place).glob(f"{folder}/libcupti.so.*")) for place, folder in folders]
    return [path for paths in found for path in reversed(paths)]
