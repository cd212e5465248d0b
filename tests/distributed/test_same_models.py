"""Whether all ranks have the same parameters: two numbers tell, and messages name the first difference."""

import chainer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixprec.distributed.same_models import Members, check_same, check_settings, check_updates


def parameter(shape=(2, 3), dtype="f", order="C"):
    return chainer.Parameter(np.zeros(shape, dtype, order)) if shape else chainer.Parameter(0)


def _agree(fingerprints):
    total = sum(fingerprints)
    return [bool((total == len(fingerprints) * own).all()) for own in fingerprints]


@given(st.lists(st.integers(0, 2**20 - 1), min_size=1, max_size=6))
def test_sums_tell_whether_all_are_equal(numbers):
    fingerprints = [np.array([number, number * number], np.float64) for number in numbers]
    assert _agree(fingerprints) == [len(set(numbers)) == 1] * len(numbers)


def test_sums_are_exact_for_thousands_of_ranks():
    largest = np.array([2**20 - 1, (2**20 - 1) ** 2], np.float64)
    smaller = np.array([2**20 - 2, (2**20 - 2) ** 2], np.float64)
    assert all(_agree([largest] * 8192))
    assert not any(_agree([largest] * 8191 + [smaller]))


def test_another_number_of_updates_has_another_fingerprint():
    one = Members([("/W", parameter())])
    assert all(_agree([one.fingerprint(7), one.fingerprint(7)]))
    assert not any(_agree([one.fingerprint(7), one.fingerprint(8)]))
    check_updates([7, 7])
    with pytest.raises(RuntimeError, match="rank 0 has done 7 updates, rank 2 8, and ranks are out of step"):
        check_updates([7, 7, 8])


DIFFERENCES = [
    ([("/W", parameter((3, 2)))], r"the shape of /W is \(2, 3\) on rank 0, \(3, 2\) on rank 2: all need the same"),
    ([("/W", parameter(dtype="e"))], "the dtype of /W is float32 on rank 0, float16 on rank 2"),
    ([("/W", parameter(order="F"))], r"axes in memory of /W is \(0, 1\) on rank 0, \(1, 0\) on rank 2"),
    ([("/W", parameter(None))], r"the shape of /W is \(2, 3\) on rank 0, none yet on rank 2"),
    ([], "rank 0 has a parameter /W, rank 2 has not"),
    ([("/V", parameter()), ("/W", parameter())], "rank 2 has a parameter /V, rank 0 has not"),
]


@pytest.mark.parametrize(("other", "message"), DIFFERENCES)
def test_each_difference_has_another_fingerprint_and_a_message(other, message):
    mine, same, others = Members([("/W", parameter())]), Members([("/W", parameter())]), Members(other)
    assert all(_agree([mine.fingerprint(), same.fingerprint()]))
    assert not any(_agree([mine.fingerprint(), others.fingerprint()]))
    check_same([mine.description, same.description])
    with pytest.raises(ValueError, match=message):
        check_same([mine.description, same.description, others.description])


def test_settings():
    check_settings([{"a": 1}, {"a": 1}])
    with pytest.raises(ValueError, match="a is 1 on rank 0, 2 on rank 1: give all ranks the same"):
        check_settings([{"a": 1}, {"a": 2}])
    with pytest.raises(ValueError, match="a is 1 on rank 0, None on rank 1"):
        check_settings([{"a": 1}, {"b": 1}])


def test_another_parameter_in_the_place_of_one():
    """It is other ranks' as well, and its values have to be sent; another array behind a parameter has not."""
    first, second = parameter(), parameter()
    before = Members([("/V", first), ("/W", second)])
    first.array = first.array.copy()
    assert not before.are([("/V", first), ("/W", second)])
    same = Members([("/V", first), ("/W", second)], before)
    assert same.description == before.description
    assert same.are([("/V", first), ("/W", second)])
    gone = Members([("/W", second)], same)
    replaced = Members([("/V", parameter()), ("/W", second)], gone)
    assert replaced.description != before.description
    assert [key in before.keys for key in replaced.keys] == [False, True]
