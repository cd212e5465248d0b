"""The CUDA kernels in ``mixprec/backends/kernels``, compiled for the dtypes that they are called with.

The source of a kernel is a file ``<name>.cu`` after the headers and a few macros, which ``storage.cuh`` describes; a
file may have macros of its own, and may include other headers. It is compiled when a kernel of it is launched for the
first time with these macros.
"""

import re

import ml_dtypes
import numpy as np

from mixprec.backends.launch import text_of

HEADERS = ("words.cuh", "philox.cuh", "storage.cuh", "batch_norm.cuh", "lanes.cuh")
DTYPES = {np.dtype(np.float16): "FLOAT16", np.dtype(ml_dtypes.bfloat16): "BFLOAT16", np.dtype(np.float32): "FLOAT32"}
ACCESS = 16  # bytes that a thread reads or writes at once


class Kernels:
    """Compiles and launches on one device.

    Args:
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of the device.
    """

    def __init__(self, launcher):
        self._launcher = launcher
        self._compiled = {}

    def launch(self, file, name, blocks, arguments, dtype, width=1, other=None, macros=()):
        """Launches a kernel; not at all for 0 blocks.

        Args:
            file: name of a file without ``.cu``.
            name: of a kernel in it.
            blocks: number of blocks.
            arguments: arrays on the device, or ``None``, passed as addresses; ints (``long long``),
                floats (``double``), and structs as of :meth:`~mixprec.backends.launch.CupyLauncher.launch`.
            dtype: the storage dtype, of NumPy or ml_dtypes.
            width: number of neighbouring elements for a thread, see :func:`width_of`.
            other: another dtype that the kernel reads or writes; ``None`` for ``dtype``.
            macros: macros of the file, pairs of name and int.
        """
        if not blocks:
            return
        key = file, dtype, width, other or dtype, macros
        kernels = self._compiled.get(key)
        if kernels is None:
            source = source_of(file, self._launcher.threads, dtype, width, other, macros)
            kernels = self._compiled[key] = self._launcher.compile(source, names_in(file))
        self._launcher.launch(kernels[name], blocks, list(map(self._by_value, arguments)))

    def _by_value(self, argument):
        if isinstance(argument, (int, float, np.generic)) or (type(argument) is np.ndarray and argument.ndim):
            return argument
        return 0 if argument is None else self._launcher.address(argument)


def source_of(file, threads, dtype, width=1, other=None, macros=()):
    """Returns the CUDA source of a file; arguments as of :meth:`Kernels.launch`, and the threads of a block."""
    common = {"THREADS": threads, "WIDTH": width, "STORAGE": DTYPES[dtype], "OTHER": DTYPES[other or dtype]}
    lines = [f"#define {name} {value}" for name, value in (*common.items(), *macros)]
    text = "\n".join([*lines, *(text_of("mixprec.backends", name) for name in (*HEADERS, f"{file}.cu")), ""])
    return re.sub(r'#include "([^"]+)"', lambda include: text_of("mixprec.backends", include[1]), text)


def names_in(file):
    """Returns the names of the kernels in a file, a tuple."""
    kernel = r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\('
    return tuple(re.findall(kernel, text_of("mixprec.backends", f"{file}.cu")))


def width_of(length, dtypes, addresses):
    """Returns the number of neighbouring elements that a thread can read and write at once.

    Args:
        length: number of elements of each row; 0 where the kernel sees to the rest itself.
        dtypes: of the arrays. The widest one takes 16 bytes, so that a warp writes whole lines.
        addresses: of the arrays.

    Returns:
        As many elements as fit into 16 bytes, or 1 if the length or an address is not a multiple of that.
    """
    width = ACCESS // max(dtype.itemsize for dtype in dtypes)
    return 1 if length % width or any(address % ACCESS for address in addresses) else width
