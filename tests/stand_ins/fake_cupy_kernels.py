"""CuPy's ``ElementwiseKernel`` and ``ReductionKernel`` on the host: the same text, compiled by g++.

What Chainer's own paths beside cuDNN launch then runs as it is written there, with CuPy's rules for types: the arrays
of one type variable have one dtype.
"""

import ctypes
import re

import numpy as np

from tests.stand_ins import compiled
from tests.stand_ins.device_stand_in import DeviceArray

_HEADER = """
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#define __device__
#define __host__
#define __forceinline__ inline
template <class T> auto rsqrt(T x) { return 1 / sqrt(x); }
struct float16 {
    _Float16 value;
    float16() = default;
    template <class T> float16(T v) : value((_Float16)(float)v) {}
    operator float() const { return (float)value; }
    float16& operator+=(float v) { return *this = float16((float)value + v); }
    float16& operator-=(float v) { return *this = float16((float)value - v); }
    float16& operator*=(float v) { return *this = float16((float)value * v); }
    float16& operator/=(float v) { return *this = float16((float)value / v); }
};
template <class T> struct Wide { using type = T; };
template <> struct Wide<float16> { using type = float; };
template <class A, class B> auto min(A a, B b) {
    typename Wide<A>::type x = a; typename Wide<B>::type y = b; return x < y ? x : y;
}
template <class A, class B> auto max(A a, B b) {
    typename Wide<A>::type x = a; typename Wide<B>::type y = b; return x < y ? y : x;
}
template <class T> struct Raw {
    T* data; long long count;
    T& operator[](long long i) const { return data[i]; }
    long long size() const { return count; }
};
template <class A, class B> void atomicAdd(A* address, B value) { *address += value; }
static struct { long long count; long long size() const { return count; } } _ind;
"""
_CTYPES = {"bool": "bool", "float16": "float16", "float32": "float", "float64": "double"}


class _Parameter:
    """One of a kernel's parameters, from text such as ``raw T x``."""

    def __init__(self, text):
        *self.words, self.type, self.name = text.split()
        self.is_raw = "raw" in self.words


def _parameters(text):
    return [_Parameter(part) for part in text.split(",") if part.strip()]


def _ctype(dtype):
    dtype = np.dtype(dtype)
    return _CTYPES.get(dtype.name, f"{dtype.name}_t")


class _Types(dict):
    """Dtypes by type variable, and by the names of NumPy."""

    def resolve(self, kernel, parameters, values):
        """Takes the types of arrays; scalars follow, and are of a type of their own where no array has it."""
        for parameter, value in zip(parameters, values, strict=True):
            if isinstance(value, np.ndarray):
                self._set(kernel, parameter, value.dtype)
        for parameter, value in zip(parameters, values, strict=True):
            if not isinstance(value, np.ndarray) and self.of(parameter) is None:
                self._set(kernel, parameter, np.asarray(value).dtype)

    def of(self, parameter):
        if len(parameter.type) == 1:
            return self.get(parameter.type)
        return np.dtype(parameter.type)

    def _set(self, kernel, parameter, dtype):
        known = self.of(parameter)
        if known is None:
            self[parameter.type] = dtype
        elif known != dtype:
            raise TypeError(f"{kernel}: {parameter.name} is {dtype}, its type {parameter.type} is {known}")


class _Kernel:
    """What both kinds of kernel share: parameters, types, the compiled function."""

    def __init__(self, in_params, out_params, name, preamble=""):
        self.name = name
        self.inputs, self.outputs = _parameters(in_params), _parameters(out_params)
        self.preamble = re.sub(r"#include <cupy/[^>]*>", "", preamble)
        self._compiled = {}

    def _checked(self, arguments):
        """Returns ``(inputs, outputs or None for each)``; arrays have to be on the device."""
        given = len(arguments) - len(self.inputs)
        if given not in (0, len(self.outputs)):
            raise TypeError(f"{self.name}: {len(arguments)} arguments")
        for value in arguments:
            if isinstance(value, np.ndarray) and not isinstance(value, DeviceArray):
                raise TypeError(f"{self.name}: unsupported type {type(value)}")
        return arguments[: len(self.inputs)], arguments[len(self.inputs) :] or (None,) * len(self.outputs)

    def _function(self, types, body):
        key = tuple(sorted((name, np.dtype(dtype).name) for name, dtype in types.items()))
        if key not in self._compiled:
            names = "".join(f"using {variable} = {_ctype(dtype)};\n" for variable, dtype in types.items())
            self._compiled[key] = _compile(f"{_HEADER}{names}{self.preamble}\n{body}")
        return self._compiled[key]

    def _type(self, parameter):
        return parameter.type if len(parameter.type) == 1 else _ctype(parameter.type)


class ElementwiseKernel(_Kernel):
    """See ``cupy.ElementwiseKernel``."""

    def __init__(self, in_params, out_params, operation, name="kernel", reduce_dims=True, preamble="", **options):
        super().__init__(in_params, out_params, name, preamble)
        self.operation = operation

    def __call__(self, *arguments, size=None, **options):
        inputs, outputs = self._checked(arguments)
        types = _Types()
        known = [(p, v) for p, v in zip(self.inputs + self.outputs, (*inputs, *outputs), strict=True) if v is not None]
        types.resolve(self.name, *zip(*known, strict=True))
        shapes = [np.shape(value) for parameter, value in known if not parameter.is_raw]
        shape = (size,) if size is not None else np.broadcast_shapes(*shapes)
        results = [
            np.empty(shape, types.of(p)).view(DeviceArray) if out is None else out
            for p, out in zip(self.outputs, outputs, strict=True)
        ]
        buffers = []
        for parameter, value in zip(self.inputs + self.outputs, (*inputs, *results), strict=True):
            value = np.asarray(value).astype(types.of(parameter), copy=False)
            buffers.append(np.ascontiguousarray(value if parameter.is_raw else np.broadcast_to(value, shape)))
        counts = [buffer.size for buffer in buffers]
        self._run(types, int(np.prod(shape)), buffers, counts)
        for result, buffer in zip(results, buffers[len(inputs) :], strict=True):
            if not np.shares_memory(result, buffer):
                result[...] = buffer.reshape(result.shape)
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, types, n, buffers, counts):
        lines = []
        for place, parameter in enumerate(self.inputs + self.outputs):
            kind, name = self._type(parameter), parameter.name
            data = f"({kind}*)data[{place}]"
            if parameter.is_raw:
                lines.append(f"Raw<{kind}> {name}{{{data}, counts[{place}]}};")
            elif place < len(self.inputs):
                lines.append(f"const {kind} {name} = ({data})[i];")
            else:
                lines.append(f"{kind}& {name} = ({data})[i];")
        body = (
            'extern "C" void run(long long n, void** data, const long long* counts) {\n'
            f"_ind.count = n;\nfor (long long i = 0; i < n; i++) {{\n{' '.join(lines)}\n{self.operation};\n}}\n}}\n"
        )
        addresses = (ctypes.c_void_p * len(buffers))(*(buffer.ctypes.data for buffer in buffers))
        self._function(types, body)(ctypes.c_longlong(n), addresses, (ctypes.c_longlong * len(counts))(*counts))


class ReductionKernel(_Kernel):
    """See ``cupy.ReductionKernel``: one output."""

    def __init__(
        self,
        in_params,
        out_params,
        map_expr,
        reduce_expr,
        post_map_expr,
        identity,
        name="kernel",
        reduce_type=None,
        preamble="",
        **options,
    ):
        super().__init__(in_params, out_params, name, preamble)
        self.map_expr, self.reduce_expr, self.post_map_expr = map_expr, reduce_expr, post_map_expr
        self.identity, self.reduce_type = identity, reduce_type

    def __call__(self, *arguments, axis=None, keepdims=False, **options):
        inputs, (out,) = self._checked(arguments)
        types = _Types()
        known = [(p, v) for p, v in zip(self.inputs + self.outputs, (*inputs, out), strict=True) if v is not None]
        types.resolve(self.name, *zip(*known, strict=True))
        pairs = list(zip(self.inputs, inputs, strict=True))
        shape = np.broadcast_shapes(*(np.shape(value) for parameter, value in pairs if not parameter.is_raw))
        axes = range(len(shape)) if axis is None else (axis,) if np.ndim(axis) == 0 else axis
        axes = sorted(one % len(shape) for one in axes)
        kept = [place for place in range(len(shape)) if place not in axes]
        buffers = []
        for parameter, value in pairs:
            value = np.asarray(value).astype(types.of(parameter), copy=False)
            if not parameter.is_raw:
                value = np.broadcast_to(value, shape).transpose(*kept, *axes)
            buffers.append(np.ascontiguousarray(value))
        length = int(np.prod([shape[place] for place in axes]))
        result = np.empty([1 if place in axes else shape[place] for place in range(len(shape))], self._of_output(types))
        self._run(types, length, buffers, result)
        if not keepdims:
            result = result.reshape([shape[place] for place in kept])
        if out is None:
            return result.view(DeviceArray)
        out[...] = result
        return out

    def _of_output(self, types):
        (parameter,) = self.outputs
        return types.of(parameter)

    def _run(self, types, length, buffers, result):
        (parameter,) = self.outputs
        kind = self._type(parameter)
        lines = []
        for place, (one, buffer) in enumerate(zip(self.inputs, buffers, strict=True)):
            data = f"({self._type(one)}*)data[{place}]"
            is_raw = one.is_raw
            value = f"{{{data}, {buffer.size}}}" if is_raw else f" = ({data})[_j]"
            lines.append(f"const {f'Raw<{self._type(one)}>' if is_raw else self._type(one)} {one.name}{value};")
        body = (
            f"using sum_t = {self.reduce_type or f'Wide<{kind}>::type'};\n"
            'extern "C" void run(long long n, void** data, long long length) {\n'
            "for (long long o = 0; o < n; o++) {\n"
            f"sum_t a = sum_t({self.identity});\n"
            "for (long long _j = o * length; _j < (o + 1) * length; _j++) {\n"
            f"{' '.join(lines)}\nsum_t b = sum_t({self.map_expr});\na = ({self.reduce_expr});\n}}\n"
            f"{' '.join(line for line, one in zip(lines, self.inputs, strict=True) if one.is_raw)}\n"
            f"{kind}& {parameter.name} = (({kind}*)data[{len(buffers)}])[o];\n{self.post_map_expr};\n}}\n}}\n"
        )
        addresses = (ctypes.c_void_p * (len(buffers) + 1))(*(b.ctypes.data for b in buffers), result.ctypes.data)
        self._function(types, body)(ctypes.c_longlong(result.size), addresses, ctypes.c_longlong(length))


class RawKernel:
    """Chainer makes some when it is imported."""

    def __init__(self, code, name, *arguments, **options):
        self.name = name

    def __call__(self, *arguments, **options):
        raise NotImplementedError(f"fake CuPy runs no raw kernels: {self.name}")


def _compile(source):
    """Returns the function ``run`` of a C++ source."""
    run = compiled.library(source, ("-ffp-contract=off",)).run
    run.restype = None
    return run
