"""Which cases belong to the core, which `make test` runs, and which to the sweep, which `make test-sweep` runs.

A test function with many cases is a family. The core has at most :data:`CORE` cases of it, which together show each
value of each parameter, and each pair of values, as far as that number goes. All other cases get the mark ``sweep``.
``@pytest.mark.core(n)`` sets another number for one function, ``core(0)`` is the same as ``sweep``. The choice depends
on the names of the cases only, so that all runs and all workers of pytest-xdist make the same one.

Property tests get the mark ``examples``. The core tries few examples of each, always the same ones; the sweep tries as
many as the test asks for.

What takes long and tells little that a shorter case does not, as a network of 152 layers, has the mark ``long``.
`make test-long` runs it, as before a release; `make test-sweep` and CI leave it out.
"""

import functools
import hashlib
import itertools
import os

import hypothesis
import pytest

CORE = 4
EXAMPLES = 15
_CORE = "core"
WHOLE_FOLDERS = ("tests/benchmarks/", "tests/stand_ins/")  # measuring tools, and tests of tests: no user runs them


def mark(items):
    """Marks collected tests.

    Args:
        items: list of ``pytest.Item``.
    """
    families = {}
    for item in items:
        if item.nodeid.startswith(WHOLE_FOLDERS) or item.get_closest_marker("long"):
            item.add_marker(pytest.mark.sweep)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.examples)
        # Most machines skip the cases for a GPU: they do not stand for others.
        if not any(map(item.get_closest_marker, ("gpu", "sweep"))):
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family in families.values():
        wanted = family[0].get_closest_marker("core")
        size = wanted.args[0] if wanted else CORE
        if len(family) > size:
            core = cover({_name(item): _values(item) for item in family}, size)
            for item in family:
                if _name(item) not in core:
                    item.add_marker(pytest.mark.sweep)


def cover(cases, size):
    """Chooses cases that show as many values, and then pairs of values, of their parameters as possible.

    Args:
        cases: dict from the name of a case to its values, one for each parameter.
        size: number of cases to choose, at most.

    Returns:
        set of names. Each one adds most of what those before it have not shown; a digest of the name decides between
        equals, so that the cases of a single parameter are spread over its values.

    Example:
        >>> sorted(cover({"a-x": (0, 0), "a-y": (0, 1), "b-x": (1, 0), "b-y": (1, 1)}, 2))
        ['a-x', 'b-y']
    """
    left = {name: _shown(values) for name, values in cases.items()}
    order = sorted(left, key=lambda name: hashlib.sha256(name.encode()).digest())
    seen, chosen = set(), set()
    while len(chosen) < min(size, len(cases)):
        best = max((name for name in order if name not in chosen), key=lambda name: _gain(left[name] - seen))
        chosen.add(best)
        seen |= left[best]
    return chosen


def load_profile(config):
    """Loads hypothesis' settings for the circle that pytest was asked for, before tests are imported.

    Args:
        config: ``pytest.Config``; the core is what ``not sweep`` selects, also as a part of ``-m``.
    """
    suppressed = [hypothesis.HealthCheck.too_slow]
    register = functools.partial(hypothesis.settings.register_profile, deadline=None, suppress_health_check=suppressed)
    register(_CORE, derandomize=True, max_examples=EXAMPLES)
    register("sweep", derandomize="CI" in os.environ)  # CI repeats the same examples, other runs look for new ones
    hypothesis.settings.load_profile(_CORE if "not sweep" in config.option.markexpr else "sweep")


def first(number, cases):
    """Returns cases for ``pytest.mark.parametrize`` of which all but the first ``number`` have the mark ``long``."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*row, marks=() if place < number else pytest.mark.long) for place, row in enumerate(rows)]


def tries(number):
    """Returns how many examples a property test tries: ``number`` in the sweep, fewer in the core."""
    return min(number, EXAMPLES) if hypothesis.settings.get_current_profile_name() == _CORE else number


def _name(item):
    """What stands in brackets: functions with the same cases, which often share results, get the same core."""
    return item.nodeid.partition("[")[2]


def _values(item):
    indices = item.callspec.indices if hasattr(item, "callspec") else {}
    return tuple(indices.values())


def _shown(values):
    """The values and the pairs of values of a case, by the places of its parameters."""
    places = list(enumerate(values))
    return {(place,) for place in places} | set(itertools.combinations(places, 2))


def _gain(shown):
    return sum(len(each) == 1 for each in shown), len(shown)
