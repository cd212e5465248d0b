"""Comparisons of dicts of arrays, name by name."""

import numpy as np


def assert_equal(found, expected, strict=False):
    """Asserts the same names and the same numbers."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name, strict=strict)


def assert_same(found, expected):
    """Asserts the same names, numbers, shapes and dtypes."""
    assert_equal(found, expected, strict=True)


def assert_same_bits(found, expected):
    """Asserts the same names, shapes, dtypes and bytes: also the sign of zeros, and which NaN it is."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert found[name].tobytes() == value.tobytes(), name
