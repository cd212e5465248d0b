"""Names that NumPy 1.17 to 1.26 had in its namespace and NumPy 2 has removed, with their meanings.

Not restored: ``np.bool`` and ``np.long``, which are NumPy 2's own scalar types; the financial functions, which are in
the package numpy-financial; names of nose, of error objects and of the C interface. Removed methods of arrays
(``itemset``, ``newbyteorder``, ``ptp``, ``tostring``) cannot be restored from Python.
"""

import ast
import inspect
import math
import warnings

import numpy as np

# Aliases with their current names.
_ALIASES = (
    "Inf=inf Infinity=inf PINF=inf infty=inf NAN=nan NaN=nan bool8=bool_ int0=intp uint0=uintp float_=float64 "
    "longfloat=longdouble singlecomplex=complex64 cfloat=complex128 complex_=complex128 clongfloat=clongdouble "
    "longcomplex=clongdouble bytes0=bytes_ string_=bytes_ str0=str_ unicode_=str_ object0=object_ void0=void "
    "typeDict=sctypeDict alltrue=all sometrue=any product=prod cumproduct=cumprod rank=ndim round_=round "
    "row_stack=vstack trapz=trapezoid mat=asmatrix"
)
# Modules to which names of NumPy were moved.
_MOVED = {
    "char": "chararray compare_chararrays",
    "exceptions": "AxisError ComplexWarning ModuleDeprecationWarning RankWarning TooHardError "
    "VisibleDeprecationWarning",
    "lib": "add_docstring add_newdoc tracemalloc_domain",
    "lib.array_utils": "byte_bounds",
    "lib.npyio": "DataSource",
    "rec": "format_parser",
}
PATHS = dict(alias.split("=") for alias in _ALIASES.split())
PATHS |= {name: f"{module}.{name}" for module, names in _MOVED.items() for name in names.split()}

_SCALAR_TYPES = {
    "int": [np.int8, np.int16, np.int32, np.int64],
    "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
    "float": [np.float16, np.float32, np.float64, np.longdouble],
    "complex": [np.complex64, np.complex128, np.clongdouble],
    "others": [bool, object, bytes, str, np.void],
}

_KINDS = "buifcSUVOMm"  # the order of NumPy 1


class _ByDtype(dict):
    """``np.cast["float32"](x)`` and ``np.nbytes[np.float32]``: any name of a dtype is a key."""

    def __init__(self, of):
        self._of = of

    def __missing__(self, dtype):
        return self._of(dtype)


def _asfarray(a, dtype=np.float64):
    return np.asarray(a, dtype if np.issubdtype(dtype, np.inexact) else np.float64)


def _common_type(array_types, scalar_types):
    arrays, scalars = ([np.dtype(each) for each in types] for types in (array_types, scalar_types))
    if not arrays or not scalars:
        return np.result_type(*arrays, *scalars) if arrays or scalars else None
    array, scalar = np.result_type(*arrays), np.result_type(*scalars)
    return np.promote_types(array, scalar) if _KINDS.index(scalar.kind) > _KINDS.index(array.kind) else array


def _maximum_scalar_type(t):
    kind = {"i": "int", "u": "uint", "f": "float", "c": "complex"}.get(np.dtype(t).kind)
    return _SCALAR_TYPES[kind][-1] if kind else np.dtype(t).type


def _scalar_type_of(rep, default=None):
    if isinstance(rep, type) and issubclass(rep, np.generic):
        return rep
    try:
        return (rep.dtype if isinstance(rep, np.ndarray) else np.dtype(rep)).type
    except TypeError:
        return default


def _is_scalar_type(rep):
    return isinstance(rep, (type, np.dtype)) and _scalar_type_of(rep) not in (None, np.object_)


def _records(read):
    return lambda *args, **options: read(*args, **{"dtype": None, **options}).view(np.recarray)


def names():
    """Returns ``{name: its meaning}`` for all names, whether or not this NumPy has them."""
    found = {name: at(path) for name, path in PATHS.items() if at(path) is not None}
    return found | {
        **{kind.__name__: kind for kind in (float, int, complex, object, str)},
        "unicode": str,
        "NINF": -np.inf,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "math": math,
        "warnings": warnings,
        "sctypes": _SCALAR_TYPES,
        "cast": _ByDtype(lambda dtype: lambda values: np.asarray(values).astype(dtype)),
        "nbytes": _ByDtype(lambda dtype: np.dtype(dtype).itemsize),
        "in1d": lambda ar1, ar2, *args, **options: np.isin(np.ravel(ar1), ar2, *args, **options),
        "msort": lambda a: np.sort(a, axis=0),
        "asfarray": _asfarray,
        "asscalar": lambda a: a.item(),
        "alen": lambda a: len(np.array(a, ndmin=1)),
        "fastCopyAndTranspose": lambda a: np.asarray(a).T.copy(),
        "find_common_type": _common_type,
        "maximum_sctype": _maximum_scalar_type,
        "obj2sctype": _scalar_type_of,
        "issctype": _is_scalar_type,
        "issubsctype": lambda arg1, arg2: issubclass(_scalar_type_of(arg1), _scalar_type_of(arg2)),
        "issubclass_": lambda arg1, arg2: isinstance(arg1, type) and issubclass(arg1, arg2),
        "sctype2char": lambda sctype: np.dtype(_scalar_type_of(sctype)).char,
        "safe_eval": ast.literal_eval,
        "disp": lambda mesg, device=None, linefeed=True: print(mesg, file=device, end="\n" if linefeed else ""),
        "source": lambda object, output=None: print(inspect.getsource(object), file=output),
        "recfromtxt": _records(np.genfromtxt),
        "recfromcsv": _records(_read_csv),
    }


def _read_csv(fname, **options):
    return np.genfromtxt(fname, **{"case_sensitive": "lower", "names": True, "delimiter": ",", **options})


def put_back():
    """Adds each missing name to ``numpy``; names that this NumPy has stay, with their warnings."""
    for name, value in names().items():
        vars(np).setdefault(name, value)


def at(path):
    """Returns NumPy's object at a dotted path, or ``None``; without NumPy's deprecation warning."""
    value = np
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # np.char.chararray, from 2.5 on
        for name in path.split("."):
            value = getattr(value, name, None)
    return value
