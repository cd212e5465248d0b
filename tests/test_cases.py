"""Whether ``pairs`` shows all pairs, and ``first`` marks what comes behind the first cases."""

import itertools

import pytest

from tests.cases import first, pairs

AXES = "abcde", (1, 2, 3, 4), "xyz", (True, False), (True, False)


def test_pairs_of_all_axes_are_shown_by_few_rows():
    rows = pairs(*AXES)
    for (i, one), (j, other) in itertools.combinations(enumerate(AXES), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(one, other))
    assert len(set(rows)) == len(rows) <= 25 < 240
    assert rows == pairs(*AXES)


def test_early_rows_show_each_value():
    assert [{row[place] for row in pairs(*AXES)[:5]} for place in range(5)] == list(map(set, AXES))


def test_cases_behind_the_first_are_slow_and_then_long():
    marks = [[mark.name for mark in case.marks] for case in first(1, range(4), 3)]
    assert marks == [[], ["slow"], ["slow"], ["long"]]
    assert [case.values for case in first(1, [(1, 2), 3])] == [(1, 2), (3,)]
    assert first(5, "ab") == [pytest.param("a"), pytest.param("b")]
