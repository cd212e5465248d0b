"""``cuda.elementwise`` of CuPy on the host: kernels are compiled by g++, and run over arrays of NumPy."""

import ctypes
import re

import numpy as np
from chainer.backends import cuda

from tests.stand_ins.compiled import library

_TYPES = {"T": None, "float32": "float", "float64": "double"}
_SOURCE = """
#include <algorithm>
#include <cmath>
using namespace std;
typedef {T} T;
extern "C" void run(long count, void** arrays, const long* steps) {{
    for (long index_ = 0; index_ < count; ++index_) {{
        {bound}
        {operation};
    }}
}}
"""


def install(monkeypatch, dtype):
    """Puts it in the place of CuPy's, for arrays of a dtype."""

    def elementwise(inputs, outputs, operation, name):
        declared = [re.fullmatch(r"\s*(\w+) (\w+)\s*", text).groups() for text in f"{inputs},{outputs}".split(",")]
        const = ["const "] * len(inputs.split(",")) + [""] * len(outputs.split(","))
        kinds = [_TYPES[kind] or "T" for kind, _ in declared]
        bound = "".join(
            f"{is_const}{kind}& {each} = static_cast<{kind}*>(arrays[{place}])[index_ * steps[{place}]];\n"
            for place, (is_const, kind, (_, each)) in enumerate(zip(const, kinds, declared, strict=True))
        )
        c_type = {"float32": "float", "float64": "double"}[dtype]
        run = library(_SOURCE.format(T=c_type, bound=bound, operation=operation)).run

        def launch(*arguments):
            types = [np.dtype(dtype if kind == "T" else {"float": "f4", "double": "f8"}[kind]) for kind in kinds]
            arrays = [np.asarray(given, kind) for given, kind in zip(arguments, types, strict=True)]
            count = max(array.size for array in arrays)
            pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
            run(
                ctypes.c_long(count),
                pointers,
                (ctypes.c_long * len(arrays))(*(int(array.size == count) for array in arrays)),
            )

        return launch

    monkeypatch.setattr(cuda, "elementwise", elementwise)
    monkeypatch.setattr(cuda, "cupy", np, raising=False)
