"""Random right calls of each function of the library, with arrays that begin or end at memory that is forbidden.

``python -m tests.native.guard_pages FIRST COUNT`` makes the calls number FIRST to FIRST + COUNT - 1, each of which
depends on its number only, and writes each name before its call: the last one is what a crash was in. Outputs must not
depend on where arrays lie, on the number of threads, or on what was in the outputs before, and inputs must stay.
``MIXPREC_NATIVE`` chooses the instruction set.

Tests with AddressSanitizer need this too: it does not see loads and stores with a mask.
"""

import ctypes
import mmap
import sys

import numpy as np

from mixprec.native.native_library import library
from mixprec.optimizer.rules import formulas

HOOKS, RULES = map(formulas.elementwise, (formulas.HOOKS, formulas.RULES))
_PAGE = mmap.PAGESIZE
_PROTECT = ctypes.CDLL(None, use_errno=True).mprotect
_STORED = ("f4", "f2", "u2")  # u2: bfloat16
_EDGES = (1, 2, 3, 7, 8, 9, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257)
_ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, -1e-40, 6e-8, 65520, 3e38], "f4")


def between_pages(x, at_end):
    """Returns a copy of ``x`` that ends (or begins) at a page which cannot be read or written; another one is there."""
    size = -(-max(x.nbytes, 1) // _PAGE) * _PAGE
    memory = np.frombuffer(mmap.mmap(-1, size + 2 * _PAGE), np.uint8)
    for page in (memory.ctypes.data, memory.ctypes.data + _PAGE + size):
        if _PROTECT(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = _PAGE + (size - x.nbytes if at_end else 0)
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


class Calls:
    """The arrays and numbers of one call. ``outputs`` are the places of arrays that it writes."""

    def __init__(self, number):
        self.rng = np.random.default_rng(number)
        self.outputs = []

    def size(self, most=257):
        return int(self.rng.choice([edge for edge in _EDGES if edge <= most]))

    def dtype(self):
        return str(self.rng.choice(_STORED))

    def flag(self):
        return bool(self.rng.integers(2))

    def one_of(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def array(self, shape, dtype="f4"):
        """Numbers of all kinds; some arrays have none that is odd, so that sums are numbers."""
        if dtype == "u1":
            return self.rng.integers(0, 256 if self.flag() else 2, shape, "u1")
        x = self.rng.normal(0, 1, shape).astype("f4")
        if self.flag():
            x = np.where(self.rng.random(shape) < 0.05, self.rng.choice(_ODD, shape), x)
        with np.errstate(all="ignore"):
            return np.array((x.view("u4") >> 16).astype("u2") if dtype == "u2" else x.astype(dtype))

    def maybe(self, shape, dtype="f4"):
        return self.array(shape, dtype) if self.flag() else None

    def elementwise(self):
        shape = self.one_of(0, self.size(), self.size() * 1024 + self.size(), (1 << 17) + self.size() - 9)
        dtype = self.dtype()
        name = self.one_of("convert", "add", "relu", "relu_backward")
        self.outputs = [1 if name in ("convert", "relu") else 2]
        last = self.array(shape, self.dtype() if name == "convert" else dtype)
        return name, [*(self.array(shape, dtype) for _ in range(self.outputs[0])), last]

    def dropout(self):
        shape, dtype = self.one_of(0, self.size(), (1 << 17) + self.size() - 9), self.dtype()
        self.outputs = [3]
        key = self.rng.integers(0, 2**64, 2, "u8")
        return "dropout", [self.array(shape, dtype), self.one_of(0.0, 0.3, 0.999), key, self.array(shape, dtype)]

    def checksum(self):
        return "crc32c", [self.array(self.one_of(0, self.size(), self.size() * 1024 + self.size()), "u1")]

    def transpose(self):
        count, rows, columns = self.one_of(0, 1, 3), self.size(), self.size()
        to = int(self.rng.integers(0, columns + 1)), rows + int(self.rng.integers(0, 20))
        self.outputs = [1]
        arrays = self.array((count, rows, columns), self.dtype()), self.array((count, *to), self.dtype())
        return "transpose", [*arrays, (count, rows, columns), to]

    def batch_norm(self):
        channels, dtype = self.one_of(self.size(), self.size() + 250), self.dtype()
        x = (self.size() if self.flag() else int(self.rng.integers(1, 1 + 400_000 // channels)), channels)
        name = self.one_of("moments", "affine", "gradient_sums", "combine")
        if name == "moments":
            self.outputs = [2, 3]
            return name, [self.array(x, dtype), channels, self.array(channels, "f8"), self.array(channels, "f8")]
        if name == "affine":
            self.outputs = [8, 9]
            scale, bias, added = self.maybe(channels), self.array(channels), self.maybe(x, dtype)
            affine = [self.array(channels) if added is not None and self.flag() else None] * 2
            rest = [added, *affine, int(self.flag()), self.maybe(x, "u1"), self.array(x, dtype)]
            return name, [self.array(x, dtype), channels, scale, bias, *rest]
        again, has_x = self.flag(), name == "combine" or self.flag()
        relu = [self.array(channels) if again and has_x else None for _ in range(2)]
        gradient = [self.array(x, dtype), channels, self.maybe(x, dtype), *relu, self.maybe(x, "u1")]
        if name == "gradient_sums":
            self.outputs = [10, 11, 12]
            of_x = [self.array(x, dtype), self.array(channels)] if has_x else [None, None]
            other = [self.array(x, dtype), self.array(channels)] if self.flag() else [None, None]
            g = self.maybe(x, dtype) if other[0] is None else self.array(x, dtype)
            products = self.array(channels if other[0] is None else 2 * channels, "f8")
            return name, [*gradient, *of_x, *other, g, products, self.array(channels, "f8")]
        self.outputs = [11]
        vectors = [self.array(channels) for _ in range(3)] if self.flag() else [None] * 3
        return name, [*gradient, self.array(x, dtype), self.array(channels), *vectors, self.array(x, dtype)]

    def pooling(self):
        dtype, channels = self.dtype(), self.size()
        images, *edges = (int(edge) for edge in self.rng.integers(1, 8, 5))
        window, stride, pad = (tuple(map(int, self.rng.integers(least, 5, 2))) for least in (1, 1, 0))
        large, small = (images, *edges[:2], channels), (images, *edges[2:], channels)
        name = self.one_of("max_pool", "max_pool_backward", "average_pool", "average_pool_backward")
        windows = (*large, *small[1:3]), window, stride, pad
        self.outputs = [0] if name.endswith("backward") else [5, 6]
        where = [self.array(small, "u1")] if name.startswith("max") else []
        return name, [self.array(large, dtype), *windows, self.array(small, dtype), *where]

    def global_pooling(self):
        sizes, dtype = (self.one_of(0, 1, 3), self.size(), self.size()), self.dtype()
        self.outputs = [2]
        return "global_average_pool", [self.array(sizes, dtype), sizes, self.array(sizes[::2], dtype)]

    def convolution(self):
        dtype, groups = self.dtype(), self.one_of(1, 1, 2, 3)
        channels, filters = self.one_of(3, 32, self.size(65)), self.size(65) * groups
        window, stride, dilation = (tuple(map(int, self.rng.integers(1, 4, 2))) for _ in range(3))
        pad = tuple(map(int, self.rng.integers(0, 3, 2)))
        if self.flag():  # a linear layer, or a convolution of pixels
            window, pad = (1, 1), (0, 0)
        least = [(window[i] - 1) * dilation[i] + 1 for i in range(2)]
        size = tuple(least[i] + int(self.rng.integers(0, 20)) for i in range(2))
        x_shape = (int(self.rng.integers(1, 4)), *size, channels * groups + self.one_of(0, 0, 1, 5))
        w_shape = (filters, *window, channels)
        out = [(size[i] + 2 * pad[i] - least[i]) // stride[i] + 1 for i in range(2)]
        x, w = self.array(x_shape, dtype), self.array(w_shape, dtype)
        y = self.array((x_shape[0], *out, filters), dtype)
        sizes = x_shape, w_shape, (*stride, *pad, *dilation, groups)
        name = self.one_of("conv_fprop", "conv_dgrad", "conv_wgrad")
        self.outputs = [7 if name == "conv_fprop" else 5]
        if name == "conv_fprop":
            return name, [*sizes, x, w, self.maybe(filters), int(self.flag()), y]
        if name == "conv_dgrad":
            return name, [*sizes, y, w, x]
        return name, [*sizes, x, y, w]

    def update(self):
        """Of a table: each argument is an array, which the name knows what to make of."""
        rule = self.one_of(*RULES)
        hooks = tuple(hook for hook in HOOKS if self.flag())
        numbers = [tuple(self.rng.random(len(f.numbers)).tolist()) for f in (RULES[rule], *map(HOOKS.get, hooks))]
        arrays = []
        for _ in range(self.one_of(1, 3, 40)):
            size = self.one_of(0, self.size(), 1023 + self.size(3), (1 << 15) - 2 + self.size(3))
            rounded = self.array(size, self.one_of("f2", "u2")) if self.flag() else None
            rest = [abs(self.array(size)) for _ in range(1 + len(RULES[rule].states))]
            arrays += [self.array(size, self.dtype()), rounded, *rest]
        each = 3 + len(RULES[rule].states)

        def update(*arrays):
            entries = [arrays[i + 1 : i + each] for i in range(0, len(arrays), each)]
            table = library().update_table(rule, hooks, entries)
            library().update_load(table, list(arrays[::each]), 0.5)
            library().update_check(table, tuple(numbers[1:]))
            library().update_run(table, tuple(numbers[1:]), numbers[0])

        return update, arrays


_KINDS = (
    *("elementwise", "transpose", "batch_norm", "pooling", "global_pooling", "convolution", "convolution", "update"),
    *("checksum", "dropout"),
)


def call(number):
    """Makes one call in ordinary memory, and before and behind pages that cannot be touched; compares the outputs."""
    calls = Calls(number)
    name, arguments = getattr(calls, calls.one_of(*_KINDS))()
    function = name if callable(name) else getattr(library(), name)
    shapes = [(x.shape, x.dtype.str[1:]) if isinstance(x, np.ndarray) else x for x in arguments[:12]]
    print(number, getattr(name, "__name__", name), shapes, flush=True)
    expected = None
    for fill, at_end, threads in ((0, None, 1), (0xFF, True, calls.one_of(2, 3, 8)), (0x3C, False, calls.one_of(1, 2))):
        library().set_threads(threads)
        mine = []
        for place, x in enumerate(arguments):
            if isinstance(x, np.ndarray):
                x = x.copy() if at_end is None else between_pages(x, at_end)
                if place in calls.outputs:
                    x.view(np.uint8)[...] = fill
            mine.append(x)
        bits = [function(*mine), *(x.tobytes() if isinstance(x, np.ndarray) else None for x in mine)]
        expected = expected or bits
        assert bits == expected, (number, name, threads, [a == b for a, b in zip(bits, expected, strict=True)])
        for place, x in enumerate(arguments):
            if isinstance(x, np.ndarray) and name != function and place not in calls.outputs:
                assert mine[place].tobytes() == x.tobytes(), (number, name, "wrote into argument", place)


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    print(library().instructions())
    for number in range(first, first + count):
        call(number)
    print("done")
