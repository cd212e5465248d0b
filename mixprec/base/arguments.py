"""Checks of arguments: each error is one line with the argument, the expected and the actual value.

Numbers may be NumPy's, but ``True`` is not a number; a dtype may be a name, a class or a ``np.dtype``.
"""

import contextlib
import math
import numbers
import operator
import reprlib

import numpy as np

from mixprec.base.dtypes import BFLOAT16
from mixprec.base.messages import hint, nearest
from mixprec.base.vocabulary import DTYPE_SYNONYMS, DTYPES, meant

_DTYPES = {dtype.name: dtype for dtype in (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32))}
_KNOWN = {**_DTYPES, **{dtype: dtype for dtype in _DTYPES.values()}}
_BOOLS = bool, np.bool_


def found(value):
    """Returns a short description of a value, in one line."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (str, bytes, numbers.Number, np.generic, tuple, list, dict, set)):
        try:
            return " ".join(reprlib.repr(value).split())
        except ValueError:  # an integer of more digits than Python writes
            return "an integer of thousands of digits"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    what = f", shape {shape} {dtype}" if isinstance(shape, tuple) and dtype is not None else ""
    return f"{type(value).__name__}{what}"


def instance(name, value, kind, what):
    """Returns an argument, which must be an instance of a class, or of one of several classes.

    Raises:
        TypeError: it is not an instance.
    """
    if not isinstance(value, kind):
        raise not_a(name, value, what)
    return value


def not_a(name, value, what):
    """Returns the error of :func:`instance`, for callers that check the class themselves, to save time."""
    text = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return TypeError(f"{name} must be {what}; found {text}")


def function(name, value):
    """Returns an argument, which must be callable, or ``None``.

    Raises:
        TypeError: it is neither.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None; found {found(value)}")
    return value


def optimizer(name, value):
    """Returns an argument, which must be a ``MixedPrecisionOptimizer``, or ChainerMN's optimizer around one.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, type) or not hasattr(value, "unscaled_gradients"):
        raise TypeError(f"{name} must be a mixprec.MixedPrecisionOptimizer; found {found(value)}")
    return value


def trigger(name, value):
    """Returns an argument, which must be a trigger of Chainer: ``(5, "epoch")``, a function, or ``None`` for never.

    Raises:
        TypeError: it is none.
    """
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    if value is None or callable(value) or (pair and is_number(value[0]) and value[1] in ("epoch", "iteration")):
        return value
    raise TypeError(f"{name} must be (number, 'epoch' or 'iteration'), a function or None; found {found(value)}")


def flag(name, value):
    """Returns an argument as a bool.

    Raises:
        TypeError: it is neither True nor False; numbers are not.
    """
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise TypeError(f"{name} must be True or False; found {found(value)}")
    return bool(value)


def choice(name, value, choices, synonyms=None):
    """Returns an argument, which must be one of several strings, or a synonym of one in upper or lower case.

    Raises:
        ValueError: it is not one of them.
    """
    value = value if synonyms is None else meant(value, choices, synonyms)
    if not isinstance(value, str) or value not in choices:
        raise _no_choice(name, value, (*choices, *(synonyms or ())))
    return value


def _no_choice(name, value, words):
    near = nearest(value, words) if isinstance(value, str) else None
    return ValueError(f"{name} must be one of {', '.join(words)}; found {found(value)}{hint(near)}")


def whole(name, value, least=None, most=math.inf):
    """Returns an argument as an int, which must be a whole number, not too small and not too large.

    Raises:
        ValueError: it is not such a number.
    """
    index = as_index(value)
    if index is None or (least is not None and index < least) or index > most:
        limit = "" if least is None else f", {least} or more" if most == math.inf else f" from {least} to {most}"
        raise ValueError(f"{name} must be a whole number{limit}; found {found(value)}")
    return index


def as_index(value):
    """Returns a whole number as an int, or ``None`` of anything else."""
    if isinstance(value, _BOOLS) or hasattr(value, "ndim") != isinstance(value, np.generic):  # nor an array
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def number(name, value, least=-math.inf, below=math.inf):
    """Returns an argument as a float, which must be finite, at least ``least``, and less than ``below``.

    Raises:
        ValueError: it is not such a number.
    """
    if is_number(value) and math.isfinite(value) and least <= value < below:
        return float(value)
    if below < math.inf:
        limit = f"from {least:g} to below {below:g}"
    else:
        limit = "a finite number" if least == -math.inf else f"a finite number, {least:g} or more"
    raise ValueError(f"{name} must be {limit}; found {found(value)}")


def power_of_two(name, value):
    """Returns an argument as a float, which must be a positive power of two in the range of float32.

    Raises:
        ValueError: it is not such a number.
    """
    power = float(value) if is_number(value) else 0.0  # a float16 cannot be compared with numbers out of its range
    if not 2.0**-149 <= power <= 2.0**127 or math.frexp(power)[0] != 0.5:
        raise ValueError(f"{name} must be a positive power of two from 2^-149 to 2^127; found {found(value)}")
    return power


def is_number(value):
    """Whether a value is a real number of Python or NumPy in the range of a float."""
    if isinstance(value, _BOOLS) or not isinstance(value, (numbers.Real, np.floating, BFLOAT16.type)):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def initializer(name, value):
    """Returns an argument that Chainer accepts as an initializer: ``None``, a number, an array or a function.

    Raises:
        TypeError: it is something else.
    """
    array = hasattr(value, "shape") and hasattr(value, "dtype")
    if not isinstance(value, type) and (value is None or array or is_number(value) or callable(value)):
        return value
    raise TypeError(f"{name} must be an initializer, an array, a number or None; found {found(value)}")


def storage_dtype(name, value):
    """Returns float16, bfloat16 or float32 as a ``np.dtype``, given by name or synonym, by class or as a ``np.dtype``.

    Raises:
        ValueError: it is something else.
    """
    dtype = _KNOWN.get(value) if isinstance(value, (str, np.dtype)) else None
    if dtype is None and isinstance(value, str):
        dtype = _DTYPES.get(meant(value, DTYPES, DTYPE_SYNONYMS))
    if dtype is not None:  # in most calls
        return dtype
    if isinstance(value, (str, type, np.dtype)) or (hasattr(value, "dtype") and not hasattr(value, "shape")):
        with contextlib.suppress(TypeError):  # another string, or a class that is not a dtype
            dtype = _DTYPES.get(np.dtype(value).name)
    if dtype is None:
        raise _no_choice(name, value, (*DTYPES, *DTYPE_SYNONYMS))
    return dtype
