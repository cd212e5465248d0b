"""Which tests run when, and the tables of cases that tests are parametrized with.

A test without a mark is in the core, which `make test` runs. Marks stand in the files of the tests:

- ``slow``: takes long, or shows what a faster test shows too. `make test-slow` runs it, in CI.
- ``long``: takes longer, and tells little that a shorter case does not, as a network of 152 layers after one of 50.
  `make test-long` runs it, before an issue is resolved; CI leaves it out.

Property tests run in the core with few examples, always the same ones. `make test-long` tries as many new ones as the
test asks for.
"""

import collections
import functools
import itertools

import hypothesis
import pytest

EXAMPLES = 15
_CORE = "core"


def mark(items):
    """Gives collected property tests the mark ``examples``, and what is ``long`` the mark ``slow``, too.

    Args:
        items: list of ``pytest.Item``.
    """
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.examples)


def load_profile(config):
    """Loads hypothesis' settings for what pytest was asked for, before tests are imported.

    Args:
        config: ``pytest.Config``; where ``-m`` names ``examples``, property tests try all of theirs.
    """
    suppressed = [hypothesis.HealthCheck.too_slow]
    register = functools.partial(hypothesis.settings.register_profile, deadline=None, suppress_health_check=suppressed)
    register(_CORE, derandomize=True, max_examples=EXAMPLES)
    register("examples")
    hypothesis.settings.load_profile("examples" if "examples" in config.option.markexpr else _CORE)


def tries(number):
    """Returns how many examples a property test tries: ``number`` in `make test-long`, fewer in the core."""
    return min(number, EXAMPLES) if hypothesis.settings.get_current_profile_name() == _CORE else number


def first(core, cases, slow=None):
    """Returns cases for ``pytest.mark.parametrize`` of which the core has only the first ones.

    Args:
        core: how many cases have no mark.
        cases: iterable of values, or of tuples for several names.
        slow: how many are in the core or ``slow``; those behind them are ``long``. Default: all.
    """
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    end = len(rows) if slow is None else slow
    marks = [()] * core + [pytest.mark.slow] * (end - core) + [pytest.mark.long] * (len(rows) - end)
    return [pytest.param(*row, marks=each) for row, each in zip(rows, marks, strict=False)]


def in_turn(values, others):
    """Returns a row for each value, with the others in turn: where these two take no branch of ours together."""
    return list(zip(values, itertools.cycle(others)))


def pairs(*axes):
    """Returns rows that together show each pair of values of two axes, in place of the whole product.

    A fault that needs three values at once is rare; for those there are property tests. The rows are the same in each
    run, and early ones show the most, so ``first(4, pairs(...))`` has each value of a short axis.

    Args:
        *axes: the values of each parameter.

    Returns:
        list of tuples, one value of each axis in a row.

    Example:
        >>> pairs("abc", (1, 2), "x")
        [('a', 1, 'x'), ('b', 2, 'x'), ('c', 1, 'x'), ('a', 2, 'x'), ('b', 1, 'x'), ('c', 2, 'x')]
    """
    shown = {row: _pairs_of(row) for row in itertools.product(*(range(len(axis)) for axis in axes))}
    rows, unseen, used = [], set().union(*shown.values()), collections.Counter()
    while unseen:
        # Between equals, the row whose values were used least, then the first.
        best = max(shown, key=lambda row: (len(shown[row] & unseen), -sum(used[each] for each in enumerate(row))))
        rows.append(tuple(axis[place] for axis, place in zip(axes, best, strict=True)))
        used.update(enumerate(best))
        unseen -= shown.pop(best)
    return rows


def _pairs_of(row):
    return set(itertools.combinations(enumerate(row), 2))
