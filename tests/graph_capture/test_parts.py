"""The parts of graph capture by themselves: arguments, reports, the comparison of two steps, the verification."""

import re

import chainer
import numpy as np
import pytest
from ml_dtypes import bfloat16

from mixprec.backends.device_log import Record, record, recording
from mixprec.base import announcements
from mixprec.graph_capture import doubts
from mixprec.graph_capture.doubts import Doubts
from mixprec.graph_capture.origin import line_of
from mixprec.graph_capture.rank_agreement import CAPTURE, EAGER, FAILED, LAUNCH, REFUSED, RankVote, resolve
from mixprec.graph_capture.reports import Reports
from mixprec.graph_capture.step_arguments import Arguments
from mixprec.graph_capture.verification import Runs, Verification
from mixprec.graph_capture.watch import difference


class Host:
    """In place of the graphs of a device."""

    def empty_like(self, array):
        return np.empty_like(array)

    def copy(self, source, target):
        target[...] = source


# --- arguments


X, T = np.ones((2, 3, 4, 4), np.float32), np.zeros(2, np.int32)


@pytest.mark.parametrize(
    "other",
    [
        *(((X[:1], T[:1]), {}), ((X.astype(np.float16), T), {})),
        ((np.ascontiguousarray(X.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), T), {}),
        *(((chainer.Variable(X), T), {}), ((X,), {"t": T}), ((X, T, 0.5), {}), ((X, (T,)), {}), (([X, T],), {})),
        (({"x": X, "t": T},), {}),
    ],
    ids=["shape", "dtype", "memory order", "variable", "keyword", "number", "tuple", "list", "dict"],
)
def test_another_kind_of_arguments_has_another_key(other):
    key = Arguments((X, T), {}).key
    assert Arguments((X + 1, T + 1), {}).key == key
    assert hash(key) == hash(Arguments((X.copy(), T), {}).key)
    assert Arguments(*other).key != key
    assert Arguments(*other).key == Arguments(*other).key


@pytest.mark.parametrize(("one", "other"), [(1, 2), (1, True), (1, 1.0), (0.0, -0.0)])
def test_numbers_are_a_part_of_the_key(one, other):
    assert Arguments((X, one), {}).key != Arguments((X, other), {}).key


def test_an_argument_that_cannot_be_compared_is_named():
    with pytest.raises(TypeError, match="an argument is a set; allowed are arrays and hashable objects"):
        Arguments((X, {1}), {}).key  # noqa: B018
    for value in (["a", "bc"], [None]):
        with pytest.raises(TypeError, match=r"an argument is an array of (<U2|object), which no device supports"):
            Arguments((X, np.array(value)), {}).key  # noqa: B018


def test_buffers_have_the_arguments_in_their_places():
    nhwc = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 4, 4, 3).transpose(0, 3, 1, 2)
    given = (nhwc, [T, {"flag": True, "v": chainer.Variable(X)}]), {"k": (T + 5, "text")}
    buffers = Arguments(*given).buffers_on(Host())
    for more in (0, 1):
        changed = (nhwc + more, [T + more, {"flag": True, "v": chainer.Variable(X + more)}]), {"k": (T + more, "text")}
        buffers.fill(Arguments(*changed))
        args, kwargs = buffers.arguments()
        np.testing.assert_array_equal(args[0], nhwc + more)
        assert args[0].strides == nhwc.strides
        np.testing.assert_array_equal(args[1][0], T + more)
        assert args[1][1]["flag"] is True
        assert isinstance(args[1][1]["v"], chainer.Variable)
        np.testing.assert_array_equal(args[1][1]["v"].array, X + more)
        np.testing.assert_array_equal(kwargs["k"][0], T + more)
        assert kwargs["k"][1] == "text"
        assert args[0] is buffers.arguments()[0][0]  # always the same memory
        assert args[1][1]["v"] is not buffers.arguments()[0][1][1]["v"]  # which joins a graph of its own


# --- reports


def _observing(function):
    observer, observation = object(), {}
    current = chainer.Reporter()
    current.add_observer("main", observer)
    with current.scope(observation):
        function(observer)
    return observation


def test_what_was_told_is_told_again_with_other_arrays():
    told = chainer.Variable(np.array(1.0, np.float32)) * 2

    def run(observer):
        with Reports() as reports:
            chainer.report({"loss": told, "accuracy": np.array(0.5)}, observer)
            chainer.report({"images": 3})
        reports.repeat()

    observation = _observing(run)
    assert list(observation) == ["main/loss", "main/accuracy", "images"]
    assert observation["main/loss"].array == 2
    assert observation["main/loss"].creator_node is None
    assert observation["main/loss"].array is not told.array
    assert observation["images"] == 3


def test_nothing_is_passed_on_unless_wanted():
    def run(observer, **options):
        with Reports(**options) as reports:
            chainer.report({"loss": np.array(0.5)}, observer)
        assert [name for name, _ in reports.values] == ["loss"]

    assert _observing(run) == {}
    assert _observing(lambda observer: run(observer, passes_on=True)) == {"main/loss": 0.5}


# --- two steps

PLACE = 1 << 40


def _notes(*arguments, kind="kernel", name="k", line=""):
    return [Record(kind, name, arguments, "", line)]


def test_new_memory_may_be_elsewhere():
    def step(a, b):
        return [
            Record("memory", "new", (a, 512)),
            *_notes(a, a + 511),
            Record("memory", "new", (b, 1024)),
            *_notes(a, b + 512, PLACE - 1),
        ]

    assert difference(step(PLACE, PLACE + 512), step(PLACE + 8192, PLACE + 1024)) is None
    assert difference(step(PLACE, PLACE + 512), [*step(PLACE, PLACE + 512)[:-1], *_notes(PLACE, PLACE, 5)]) is not None


def test_memory_that_was_given_out_again_is_another_block():
    """Freed in the step and taken by something larger that begins before it."""
    step = [Record("memory", "new", (PLACE + 512, 512)), *_notes(PLACE + 512)]
    again = [Record("memory", "new", (PLACE, 2048)), *_notes(PLACE + 512)]
    other = [Record("memory", "new", (PLACE, 512)), *_notes(PLACE)]
    last = [Record("memory", "new", (PLACE + 4096, 2048)), *_notes(PLACE + 4096 + 512)]
    assert difference(step + again, other + last) is None
    assert difference(step + again, other + other) is not None


DIFFERENCES = [
    (_notes(0.5), _notes(0.25, line="f:1"), "f:1: the kernel k has the number 0.25, and had 0.5 a step before"),
    (_notes(PLACE), _notes(PLACE + 512), "the kernel k uses memory that is kept from one step to the next"),
    (_notes(), _notes(name="other"), "requests the kernel other where the step before requested the kernel k"),
    (_notes(), _notes() + _notes(name="more"), "makes more requests than the step before, such as the kernel more"),
    (_notes() + _notes(name="more"), _notes(), "makes fewer requests than the step before, such as the kernel more"),
    (
        _notes(("ratio", 0.5), kind="function", name="Dropout"),
        _notes(("ratio", 0.4), kind="function", name="Dropout"),
        "ratio of the function Dropout is 0.4, and was 0.5 a step before: a graph would repeat it",
    ),
    (_notes(1, kind="report", name="lr"), _notes(2, kind="report", name="lr"), "the reported lr has the number 2"),
]


@pytest.mark.parametrize(("before", "now", "said"), DIFFERENCES)
def test_what_differs_is_named(before, now, said):
    assert said in difference(before, now)


def test_memory_of_the_step_before_is_told_also_where_it_lies_in_the_same_place():
    """Freed in each step before its successor is made: the addresses are the same."""
    step = [*_notes(PLACE, line="f:1"), Record("memory", "new", (PLACE, 512)), *_notes(PLACE)]
    assert difference(step, step).startswith("f:1: the kernel k uses memory that is kept")


def test_an_upload_of_the_table_is_nobodys_business():
    table = Record("upload", "table", (PLACE, 80))
    assert difference([table, *_notes(1)], _notes(1)) is None
    assert difference(_notes(1), [*_notes(1), Record("upload", "array", ())]) is not None


# --- the user's line


def test_the_line_is_that_of_the_user():
    with recording(line_of) as notes:
        record("kernel", "k")  # this one
    assert re.fullmatch(rf'{re.escape(__file__)}:\d+ "record\("kernel", "k"\)  # this one"', notes[0].line)


# --- verification


def _verification(bitwise, dtype=np.float32):
    """Returns the weights, as they are before a step, the verification, and an eager step's runs."""
    weights = np.array([1, 2, 3], dtype)
    verification = Verification({"weights": weights, "t": np.array(1)}, bitwise)
    weights += np.array([0.5, 0.25, 1], dtype)
    eager = Runs(verification.outcome(RESULTS), {})
    verification.turn_back()
    np.testing.assert_array_equal(weights, [1, 2, 3])
    return weights, verification, eager


RESULTS = [("loss", np.array(0.25, np.float32)), ("images", 3)]


def _again(weights, verification, values=RESULTS):
    """Does the step once more."""
    weights += np.array([0.5, 0.25, 1], weights.dtype)
    return Runs(verification.outcome(values), {})


@pytest.mark.parametrize("bitwise", [False, True])
def test_the_same_result_is_right(bitwise):
    weights, verification, eager = _verification(bitwise)
    assert verification.differences(_again(weights, verification), eager) == {}


def test_one_bit_is_wrong_only_if_bits_count():
    for bitwise in (False, True):
        weights, verification, eager = _verification(bitwise)
        weights[0] = np.nextafter(weights[0], np.float32(2))
        found = verification.differences(_again(weights, verification), eager)
        assert found.keys() == ({"weights"} if bitwise else set())
        if bitwise:
            distance, change = 2.0**-23, np.sqrt(0.5**2 + 0.25**2 + 1)
            assert found["weights"] == (
                "weights differs between the graph and an eager step: "
                f"distance {distance:.3g}, change {change:.3g}, noise 0"
            )
            verification.take(eager.outcome)
            np.testing.assert_array_equal(weights, [1.5, 2.25, 4])


@pytest.mark.parametrize(("units", "right"), [(2, True), (3, False)])
def test_two_units_in_the_last_place_are_equal(units, right):
    """As a step leaves weights near 1 at a learning rate of 1e-5, where all that it adds is one of them."""
    weights = np.ones(1000, np.float32)
    verification = Verification({"weights": weights}, False)
    weights[0] += np.float32(2.0**-23)
    eager = Runs(verification.outcome([]), {})
    weights[1:] += np.float32(units * 2.0**-23)
    assert (verification.differences(Runs(verification.outcome([]), {}), eager) == {}) == right


VARYING = [
    (0.0, 0.0, False),
    (0.2, 0.2, False),
    (0.3, 0.3, True),
    (0.01, 0.3, True),
    (0.3, 0.01, True),
    (0.3, 0.001, False),  # another order of magnitude: another step
    (0.001, 0.3, False),
]


@pytest.mark.parametrize(("eager", "launches", "right"), VARYING)
def test_runs_that_differ_among_themselves_may_differ_from_others(eager, launches, right):
    """By 4 times as much: here they are off by 1.1, and a step changes the weights by 1.15."""
    weights, verification, expected = _verification(False)

    def runs(away):
        first = verification.outcome(RESULTS)
        weights[0] += np.float32(away)
        found = Runs(first, verification.apart(first, RESULTS, {}))
        np.testing.assert_allclose(found.apart["weights"], away, atol=1e-6)
        return found

    verification.take(expected.outcome)
    of_eager = runs(eager)
    verification.take(expected.outcome)
    weights[1] += np.float32(1.1)
    of_launches = runs(launches)
    assert verification.differences(of_launches, expected).keys() == {"weights"}
    assert (verification.differences(of_launches, of_eager) == {}) == right


def test_the_furthest_run_counts_and_one_that_went_another_way_does_not():
    weights, skipped = np.zeros(2, np.float32), np.array(False)
    verification = Verification({"weights": weights, "skipped": skipped}, False, ("skipped",))
    first, apart = verification.outcome([]), {}
    for away, is_skipped in ((3, False), (100, True), (1, False)):
        weights[0], skipped[...] = away, is_skipped
        apart = verification.apart(first, [], apart)
    assert apart == {"weights": 3}


LOSSES = [
    ((0.25, 0.35), (0.25, 0.25), False),
    ((0.25, 0.251), (0.25, 0.25), False),
    ((0.25, 0.2505), (0.25, 0.25), True),
    ((0.003, 0.0), (0.003, 0.003), False),
    ((0.003, 0.001), (0.002, 0.002), True),  # a loss that is nearly 0 varies
    ((0.25, 0.35), (0.05, 0.05), False),  # but none varies by as much
    ((1.0, 1.5), (1.5, 1.0), False),
]


@pytest.mark.parametrize(("values", "runs", "right"), LOSSES)
def test_losses_vary_little(values, runs, right):
    """``values`` are an eager one and a launch's, ``runs`` the other ones of their kind."""
    verification = Verification({}, False)
    of_eager, of_launches = (
        Runs(first := verification.outcome(_loss(value)), verification.apart(first, _loss(again), {}))
        for value, again in zip(values, runs, strict=True)
    )
    assert (verification.differences(of_launches, of_eager) == {}) == right


def _loss(value):
    return [("loss", np.array(value, np.float32))]


def test_results_in_integers_and_16_bits_may_vary_as_others():
    """A map of classes, some of which are equally likely; and bfloat16, where a unit in the last place is much."""
    verification = Verification({}, False)
    classes = np.arange(10000) % 10
    other, third, wrong = classes.copy(), classes.copy(), (classes + 1) % 10
    other[3], third[7] = 5, 9
    values = [[("the result", (each, {"of": each.astype(bfloat16)}))] for each in (classes, other, third, wrong)]
    first = verification.outcome(values[0])
    eager = Runs(first, verification.apart(first, values[1], {}))
    for value, right in zip(values, (True, True, True, False), strict=True):
        launch = verification.outcome(value)
        found = verification.differences(Runs(launch, verification.apart(launch, values[1], {}) or {}), eager)
        assert set(found) == (set() if right else {"the result[0]", "the result[1]['of']"})
    close = Runs(verification.outcome([("logit", np.array([100.5]).astype(bfloat16))]), {})
    eager = Runs(verification.outcome([("logit", np.array([100]).astype(bfloat16))]), {})
    assert verification.differences(close, eager) == {}


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_overflows_in_one_of_two_is_a_difference(value):
    weights, verification, eager = _verification(False)
    right = _again(weights, verification)
    weights[1] = value
    strange = Runs(verification.outcome([("loss", np.array(value, np.float32)), ("images", 3)]), {})
    for found, expected in ((strange, eager), (right, strange)):
        reasons = verification.differences(found, expected)
        assert reasons.keys() == {"loss", "weights"}
        assert reasons["weights"].endswith("1 of 3 elements are finite in one of them only")


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_overflow_is_the_same_in_both(bitwise, value):
    weights, verification, _ = _verification(bitwise)
    values = [("loss", np.array(value, np.float32))]
    outcome = _again(weights, verification, values)
    assert verification.differences(outcome, Runs(verification.outcome(values), {})) == {}


WRONG_VALUES = [
    ([("loss", np.array(0.5))], [("loss", np.array(0.6))]),
    ([("loss", np.array(0.5))], []),
    ([("loss", np.array(0.5))], [("accuracy", np.array(0.5))]),
    ([("loss", np.array(0.5))], [("loss", np.array([0.5]))]),
    ([("loss", np.array(0.5))], [("loss", np.array(0.5)), ("loss", np.array(0.5))]),
    ([("images", 3)], [("images", 4)]),
    ([("hits", np.array(3))], [("hits", np.array(4))]),
    ([("loss", np.array(0.5))], [("loss", np.array(np.nan))]),
]


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize(("expected", "found"), WRONG_VALUES)
def test_another_value_is_wrong(bitwise, expected, found):
    weights, verification, _ = _verification(bitwise)
    outcome = _again(weights, verification, found)
    assert verification.differences(outcome, outcome) == {}
    assert len(verification.differences(outcome, Runs(verification.outcome(expected), {}))) == 1


def test_what_is_rounded_from_a_master_is_not_compared_in_bounds():
    _, verification, eager = _verification(False, np.float16)
    assert verification.differences(Runs(verification.outcome(RESULTS), {}), eager) == {}


def test_a_difference_counts_when_the_same_array_differs_in_calls_in_a_row():
    found = Doubts("the work")
    for _ in range(doubts.CALLS - 1):
        assert found.after({"a": "a differs", "b": "b differs"}) is None
        found.over(True)
    assert found.runs == doubts.MOST_RUNS
    assert found.after({"c": "c differs"}) is None  # another one: a new row
    found.over(True)
    for _ in range(doubts.CALLS - 2):
        assert found.after({"b": "b differs", "c": "c differs"}) is None
        found.over(True)
    found.over(False)  # the row is broken
    assert found.runs == doubts.MOST_RUNS
    for _ in range(doubts.CALLS - 1):
        assert found.after({"c": "c differs"}) is None
        found.over(True)
    assert found.after({"b": "b differs", "c": "c differs"}) == "c differs"


def test_a_long_comparison_is_announced_once(caplog, monkeypatch):
    monkeypatch.setattr(announcements, "_said", set())
    found = Doubts("the work")
    for number in range(40):
        found.over(number % 2 == 0)
    (record,) = caplog.records
    assert "the work still runs eagerly" in record.getMessage()


# --- several ranks

_LAUNCHES = RankVote(LAUNCH, "", 1)


OTHERS = [
    (RankVote(EAGER, "why"), EAGER, False),
    (RankVote(EAGER, "why", drops=True), EAGER, True),
    (RankVote(CAPTURE, "why"), EAGER, True),
    (RankVote(CAPTURE, "why", 2), EAGER, False),
    (RankVote(FAILED, "why"), FAILED, False),
    (RankVote(REFUSED, "why"), REFUSED, False),
]


@pytest.mark.parametrize(("other", "kind", "drops"), OTHERS)
def test_ranks_that_differ_do_what_the_first_one_says(other, kind, drops):
    for own in (_LAUNCHES, other):
        assert resolve(own, [_LAUNCHES, other, _LAUNCHES]) == RankVote(kind, "on rank 1: why", drops=drops)
    assert other.number != _LAUNCHES.number


def test_ranks_with_the_same_vote_follow_it():
    assert resolve(_LAUNCHES, None) is _LAUNCHES
    assert RankVote(LAUNCH, "another reason", 1).number == _LAUNCHES.number != RankVote(LAUNCH, "", 2).number
    votes = [RankVote(FAILED, "one"), RankVote(REFUSED, "other")]
    assert resolve(votes[0], votes).kind == REFUSED
