"""What stands for a name that NumPy 2 has dropped is what NumPy 1.26 gave: the expected values are its."""

import warnings

import numpy as np
import pytest

from mixprec.old_code import numpy_names

NAMES = numpy_names.names()


def test_names_of_numpy_2_itself_are_not_among_them():
    assert not {"bool", "long", "float32"} & NAMES.keys()


def test_names_that_are_there_stay(monkeypatch):
    monkeypatch.setattr(numpy_names, "np", mine := type(np)("mine"))
    monkeypatch.setattr(numpy_names, "names", lambda: {"float": float, "array": None})
    mine.array = np.array
    numpy_names.put_back()
    assert (mine.float, mine.array) == (float, np.array)


def test_every_path_of_an_alias_is_in_this_numpy():
    assert all(numpy_names.at(path) is not None for path in numpy_names.PATHS.values())


def test_names_are_not_reached_by_what_numpy_itself_deprecates():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numpy_names.names()


def test_what_numpy_deprecates_in_its_turn_is_reached_in_silence(monkeypatch):
    """``np.char.chararray`` warns from NumPy 2.5 on."""
    monkeypatch.setattr(numpy_names, "np", mine := type(np)("mine"))
    mine.__getattr__ = lambda name: warnings.warn(f"{name} is to go", DeprecationWarning, stacklevel=2) or 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numpy_names.at("chararray") == 1


VALUES = [
    ("float_(1)", np.float64(1)),
    ("Inf", np.inf),
    ("NINF", -np.inf),
    ("product([2, 3])", 6),
    ("cumproduct([2, 3])", [2, 6]),
    ("alltrue([1, 0])", False),
    ("sometrue([1, 0])", True),
    ("in1d([[1, 2], [3, 4]], [2, 3], invert=True)", [True, False, False, True]),
    ("row_stack([[1], [2]])", [[1], [2]]),
    ("trapz([1, 2, 3])", 4.0),
    ("msort([[3, 1], [2, 5]])", [[2, 1], [3, 5]]),
    ("asfarray([1, 2])", [1.0, 2.0]),
    ("asfarray([1, 2], 'int8').dtype", np.dtype("float64")),
    ("asfarray([1, 2], 'float32').dtype", np.dtype("float32")),
    ("asscalar(np.ones(1))", 1.0),
    ("alen(3)", 1),
    ("rank([[1]])", 2),
    ("round_(1.26, 1)", 1.3),
    ("cast['float32']([1, 2]).dtype", np.dtype("float32")),
    ("nbytes[np.float16]", 2),
    ("sctypes['float'][1]", np.float32),
    ("find_common_type(['int8', 'uint8'], [])", np.dtype("int16")),
    ("find_common_type(['float32'], ['int64'])", np.dtype("float32")),
    ("find_common_type(['float32'], ['float64'])", np.dtype("float32")),
    ("find_common_type(['int8'], ['float32'])", np.dtype("float32")),
    ("find_common_type([], ['int8'])", np.dtype("int8")),
    ("find_common_type([], [])", None),
    ("maximum_sctype('float16')", np.longdouble),
    ("maximum_sctype(np.bool_)", np.bool_),
    ("obj2sctype('f4')", np.float32),
    ("obj2sctype(np.ones(1, 'int8'))", np.int8),
    ("obj2sctype('nothing', 5)", 5),
    ("issctype(np.int32)", True),
    ("issctype(3)", False),
    ("issubsctype('int8', np.integer)", True),
    ("issubclass_(3, int)", False),
    ("sctype2char('int8')", "b"),
    ("safe_eval('[1, 2]')", [1, 2]),
    ("fastCopyAndTranspose([[1, 2]])", [[1], [2]]),
    ("recfromcsv(['A,b', '1,2'], encoding='utf8').a", 1),
    ("recfromtxt(['1 2', '3 4'])", [[1, 2], [3, 4]]),
]


@pytest.mark.parametrize(("expression", "expected"), VALUES)
def test_value(expression, expected):
    value = eval(expression, {**NAMES, "np": np})
    np.testing.assert_array_equal(value, expected)
    assert np.shape(value) == np.shape(expected)


def test_what_prints(capsys):
    NAMES["disp"]("a")
    NAMES["source"](numpy_names.put_back)
    assert capsys.readouterr().out.startswith("a\ndef put_back()")
