"""benchmarks.bars.row_statistics: medians, ratios and shares of what was measured."""

import statistics

import hypothesis.strategies as st
import pytest
from hypothesis import given

from benchmarks.bars.row_schedule import Result
from benchmarks.bars.row_statistics import Row, row_of
from benchmarks.bars.row_worker import BenchmarkRow, Block, Launches

pytestmark = pytest.mark.slow

MB = 10**6
BAR = BenchmarkRow("other", group="config")
BASE = [Block(4.0, None, 900 * MB), Block(5.0, None, 900 * MB), Block(2.0, None, 900 * MB)]
OTHER = (Block(1.0, 0.3, 500 * MB), Block(2.5, 0.1, 700 * MB), Block(1.6, 0.2, 600 * MB))


def test_a_row_has_medians_of_blocks_and_the_ratio_of_turns():
    result = Result(BAR, OTHER, Launches(5, 0), "", "said", False)
    assert row_of(16, result, BASE, 40.0) == Row(
        16,
        "other",
        "config",
        blocks=(16.0, 6.4, 10.0),
        median=10.0,
        minimum=6.4,
        maximum=16.0,
        milliseconds=1600.0,
        host_milliseconds=200.0,
        ratio=2.0,  # of 4, 2, 1.25; that of the medians is 2.5
        launches=5,
        syncs=0,
        peak=700 * MB,
        roofline=0.25,
        note="said",
    )


def test_what_is_not_known_is_none():
    row = row_of(16, Result(BAR, (Block(1.0, None, 5),), None, "", "", False), (), None)
    assert (row.median, row.ratio, row.host_milliseconds, row.launches, row.syncs, row.roofline) == (16.0, *[None] * 5)


def test_what_failed_has_a_reason_and_no_numbers():
    result = Result(BAR, (), None, "needs a GPU", "the same step as x", False)
    assert row_of(16, result, BASE, 40.0) == Row(16, "other", "config", reason="needs a GPU", note="the same step as x")


seconds = st.floats(1e-4, 1e2)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=7), st.floats(1.0, 8.0))
def test_a_drift_that_hits_both_leaves_the_ratio(pairs, drift):
    def ratio(factors):
        own, base = zip(*pairs, strict=True)
        blocks = [tuple(Block(s * f, None, 1) for s, f in zip(part, factors, strict=True)) for part in (own, base)]
        return row_of(8, Result(BAR, blocks[0], None, "", "", False), blocks[1], None).ratio

    factors = [drift if number % 2 else 1.0 for number in range(len(pairs))]
    assert ratio(factors) == pytest.approx(ratio([1.0] * len(pairs)), rel=1e-12)
    assert ratio(factors) == pytest.approx(statistics.median(base / own for own, base in pairs), rel=1e-12)
