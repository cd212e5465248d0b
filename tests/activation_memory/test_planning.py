"""Plans: what they keep, move and compute again, against all other choices, simple rules, and a simulated device."""

import dataclasses
import itertools
import random

import pytest

from mixprec.activation_memory import choosing
from mixprec.activation_memory.planning import DoesNotFit, least, plan
from mixprec.activation_memory.recording import Buffer, Bus, Event, Recomputation, Recording
from mixprec.activation_memory.timetable import schedule
from tests.activation_memory.random_rounds import KINDS, random_bus, random_recording
from tests.activation_memory.three_queues import needs_of, simulate
from tests.cases import first

FAST = Bus(1e6, 1e6)
SAME = 1e-9


def chain(count, size=100, seconds=1.0, is_repeatable=False):
    """A chain of functions, each of which retains its input; every second input may be computed again."""
    events = [Event(f"f{i}", True, seconds, 7) for i in range(count)]
    events += [Event(f"f{i}", False, 2 * seconds, 7) for i in reversed(range(count))]
    buffers = []
    for i in range(count - 1):
        again = Recomputation(seconds, (i - 1,)) if is_repeatable and i % 2 else None
        buffers.append(Buffer(size, f"/f{i}", i, i + 1, (2 * count - 2 - i,), again))
    return Recording(tuple(events), tuple(buffers))


def budgets(recording, shares, smallest=0):
    low, high = least(recording, smallest=smallest), plan(recording, None, FAST).peak
    return [low + round(share * (high - low)) for share in shares]


def as_rules_say(recording, choices, ahead):
    """Choices with memory that is given back at once, and copies back that begin some events before the need."""
    needs = needs_of(recording, choices)
    release = [None if c == "keep" else b.held + 1 for b, c in zip(recording.buffers, choices, strict=True)]
    back = [
        max(first, need[0] - ahead) if c == "swap" else None
        for first, need, c in zip(release, needs, choices, strict=True)
    ]
    return choices, release, back


def rules(recording, budget, bus):
    """Yields choices: vDNN's, and to keep as much as fits from the first or the last buffer on and to swap the rest."""
    can_move = choosing.movable(recording, 0)
    yield ["swap" if each else "keep" for each in can_move]
    convolutions = [buffer.is_convolution_input for buffer in recording.buffers]
    yield ["swap" if each and conv else "keep" for each, conv in zip(can_move, convolutions, strict=True)]
    numbers = [number for number, each in enumerate(can_move) if each]
    for order in (numbers, numbers[::-1]):
        found = None
        for count in range(len(order) + 1):
            choices = ["swap" if number in order[count:] else "keep" for number in range(len(can_move))]
            if max(simulate(recording, bus, *as_rules_say(recording, choices, 0))[1]) > budget:
                break
            found = choices
        yield found


@pytest.mark.parametrize("part", first(0, range(8), 2))
def test_plans_keep_to_their_budget_and_prediction_and_beat_rules(part):
    compared = 0
    for seed in range(25 * part, 25 * part + 25):
        source = random.Random(seed)
        recording = random_recording(KINDS[seed % len(KINDS)], source)
        bus = random_bus(recording, source)
        (budget,) = budgets(recording, [source.choice([0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1])])
        found = plan(recording, budget, bus)
        seconds, memory = simulate(recording, bus, found.schedule.choices, found.schedule.release, found.schedule.back)
        assert max(memory) <= budget
        assert max(memory) == found.schedule.peak
        assert seconds == pytest.approx(found.schedule.seconds, rel=SAME)
        assert seconds == pytest.approx(found.seconds + found.schedule.stalled + found.schedule.recomputed, rel=SAME)
        needs = needs_of(recording, found.schedule.choices)
        moved = [number for number, choice in enumerate(found.schedule.choices) if choice == "swap"]
        back = [found.schedule.back[number] for number in sorted(moved, key=lambda number: (needs[number][0], number))]
        assert back == sorted(back)  # copies back are a queue: what is needed first is not behind others
        for choices in rules(recording, budget, bus):
            others = [as_rules_say(recording, choices, ahead) for ahead in (0, 1, 2, 4, 8, 100)]
            best = schedule(choices, recording, budget, bus)
            others += [] if best is None else [(best.choices, best.release, best.back)]
            for other in others:
                other_seconds, other_memory = simulate(recording, bus, *other)
                if max(other_memory) <= budget:
                    assert seconds <= other_seconds * (1 + SAME), seed
                    compared += 1
    assert compared > 100


@pytest.mark.parametrize("kind", first(1, KINDS))
def test_few_other_choices_are_faster(kind):
    """Of all choices of small networks: the search finds the best ones but for some percent."""
    ratios = []
    for seed in range(12):
        source = random.Random(seed)
        recording = random_recording(kind, source, 9)
        bus = random_bus(recording, source)
        for budget in budgets(recording, [0.1, 0.5]):
            can = ["swap keep" if each else "keep" for each in choosing.movable(recording, 0)]
            can = [
                f"{each} recompute" if "swap" in each and buffer.recomputation else each
                for each, buffer in zip(can, recording.buffers, strict=True)
            ]
            every = (schedule(choices, recording, budget, bus) for choices in itertools.product(*map(str.split, can)))
            best = min([each.seconds for each in every if each is not None])
            ratios.append(plan(recording, budget, bus).schedule.seconds / best)
    assert max(ratios) < 1.05
    assert sorted(ratios)[len(ratios) * 3 // 4] < 1 + SAME


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_budget(kind):
    for seed in range(5):
        recording = random_recording(kind, random.Random(seed))
        budget = least(recording)
        assert plan(recording, budget, FAST).schedule.peak <= budget
        with pytest.raises(DoesNotFit) as caught:
            plan(recording, budget - 1, FAST)
        assert caught.value.least == budget


def test_a_budget_above_all_keeps_all():
    recording = chain(8)
    peak = 7 * 100 + 7
    for budget in (peak, peak + 1, None):
        found = plan(recording, budget, Bus(1e-3, 1e-3))
        assert set(found.schedule.choices) == {"keep"}
        assert (found.peak, found.schedule.peak, found.schedule.seconds) == (peak, peak, 24.0)
    assert "swap" in plan(recording, peak - 1, FAST).schedule.choices


def test_what_waits_longest_moves():
    """The bus hides copies of what is made first and needed last; two of these are there at a time, with 13 others."""
    found = plan(chain(20), 1507, Bus(100, 100))
    assert found.schedule.stalled == 0.0
    swapped = [number for number, choice in enumerate(found.schedule.choices) if choice == "swap"]
    assert swapped == [0, 1, 2, 3, 4, 5]


def test_a_slow_bus_computes_again():
    """What is computed again has the room of one buffer, beside 14 others."""
    recording = chain(20, is_repeatable=True)
    found = plan(recording, 1507, Bus(1, 1))
    assert found.schedule.choices.count("recompute") == 5
    assert found.schedule.seconds == 65.0
    without = plan(recording, 1507, Bus(1, 1), recompute=False)
    assert "recompute" not in without.schedule.choices
    assert without.schedule.seconds > 65.0


def test_small_buffers_stay():
    recording = chain(12)
    small = dataclasses.replace(recording.buffers[0], size=50)
    recording = Recording(recording.events, (small, *recording.buffers[1:]))
    (budget,) = budgets(recording, [0.1], smallest=60)
    assert plan(recording, budget, FAST, smallest=60).schedule.choices[0] == "keep"
    assert least(recording, smallest=60) > least(recording)
    with pytest.raises(DoesNotFit):
        plan(recording, least(recording), FAST, smallest=60)


def test_text():
    megabyte = 10**6
    recording = chain(20, megabyte, 0.01, is_repeatable=True)
    text = str(plan(recording, 15 * megabyte, Bus(1, 1)))
    assert text.splitlines() == [
        "             buffers          MB",
        "kept              13        13.0",
        "recomputed         6         6.0",
        "swapped            0         0.0",
        "peak: 14.0 MB of 15.0 MB; 19.0 MB if all is kept",
        "expected time of a round: 660.0 ms, 110.0 % of the time with all kept; "
        "waiting for copies 0.0 %, recomputing 10.0 %",
        "largest recomputed: /f1 1.0 MB; /f3 1.0 MB; /f5 1.0 MB",
    ]
    assert "largest swapped: /f0 1.0 MB" in str(plan(recording, 15 * megabyte, Bus(1e9, 1e9)))
    assert "of" not in str(plan(recording, None, FAST)).splitlines()[4].partition(";")[0]


def test_a_budget_that_is_too_small():
    recording = chain(20, 10**6)
    with pytest.raises(DoesNotFit) as caught:
        plan(recording, 10**6, FAST)
    assert str(caught.value) == (
        "no plan fits into 1.0 MB: f1 going forward takes 2.1 MB, even with all movable buffers elsewhere; this is the "
        "smallest possible budget"
    )
    assert isinstance(caught.value, ValueError)
